"""The end of a worker, as survivors hear of it."""

import signal
from pathlib import Path
from typing import Any

import pytest

from recoverrun.launcher.node.endings import Ending
from recoverrun.launcher.node.supervisor import Gone
from recoverrun.launcher.node.worker_messages import Worker
from recoverrun.launcher.output.error_file import LastWords

NOBODY: Any = None


@pytest.mark.parametrize(
    ("code", "ours", "fault"),
    [
        (-signal.SIGSEGV, False, "crashed"),
        (-signal.SIGABRT, False, "crashed"),
        (-signal.SIGKILL, False, ""),
        (-signal.SIGTERM, False, ""),
        (1, False, "failed"),
        (1, True, ""),
        (-signal.SIGKILL, True, ""),
    ],
)
def test_what_a_process_has_brought_upon_itself_is_told_from_what_others_did(
    code: int, ours: bool, fault: str, tmp_path: Path
) -> None:
    worker = Worker(
        rank=1, incarnation=0, child=NOBODY, context=str(tmp_path / "none"), error_file=""
    )
    gone = Gone(rank=1, code=code, ours=ours)

    left, exited = Ending(worker, gone, LastWords("", ()), 0.0, "n0").messages()

    assert (left.fault, exited.code) == (fault, code)
