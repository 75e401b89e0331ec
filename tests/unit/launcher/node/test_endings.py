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
    ("code", "ours", "hung", "stopped", "fault"),
    [
        (-signal.SIGSEGV, False, False, False, "crashed"),
        (-signal.SIGABRT, False, False, False, "crashed"),
        (-signal.SIGKILL, False, False, False, ""),
        (-signal.SIGTERM, False, False, False, ""),
        (1, False, False, False, "failed"),
        (1, True, False, False, ""),
        (-signal.SIGKILL, True, False, False, ""),
        (-signal.SIGKILL, True, True, False, "hung"),
        (-signal.SIGKILL, True, True, True, ""),
    ],
)
def test_what_a_process_has_brought_upon_itself_is_told_from_what_others_did(
    code: int, ours: bool, hung: bool, stopped: bool, fault: str, tmp_path: Path
) -> None:
    worker = Worker(
        rank=1, incarnation=0, child=NOBODY, context=str(tmp_path / "none"), error_file="",
        hung=hung, stopped=stopped,
    )  # fmt: skip
    gone = Gone(rank=1, code=code, ours=ours)

    left, exited = Ending(worker, gone, LastWords("", ()), 0.0, "n0").messages()

    assert (left.fault, exited.code) == (fault, code)
