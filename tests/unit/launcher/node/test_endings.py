"""The end of a worker, as survivors hear of it."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.launcher.node.endings import Ending
from recoverrun.launcher.node.supervisor import Gone
from recoverrun.launcher.node.worker_messages import Worker
from recoverrun.launcher.output.error_file import LastWords

NOBODY: Any = None


@pytest.mark.parametrize(
    ("code", "ours", "hung", "by_itself"),
    [
        (-signal.SIGSEGV, False, False, True),
        (-signal.SIGABRT, False, False, True),
        (-signal.SIGKILL, False, False, False),
        (-signal.SIGTERM, False, False, False),
        (1, False, False, True),
        (0, False, False, True),
        (1, True, False, False),
        (-signal.SIGKILL, True, False, False),
        (-signal.SIGKILL, True, True, True),
    ],
)
def test_what_a_process_has_brought_upon_itself_is_told_from_what_others_did(
    code: int, ours: bool, hung: bool, by_itself: bool, tmp_path: Path
) -> None:
    worker = Worker(
        rank=1, incarnation=0, child=NOBODY, context=str(tmp_path / "none"), error_file=""
    )
    worker.hung = hung
    gone = Gone(rank=1, code=code, ours=ours)

    left, exited = Ending(worker, gone, LastWords("", ()), 0.0, "n0").messages()

    assert (left.by_itself, exited.code) == (by_itself, code)


def test_who_was_ended_for_want_of_memory_is_named_so(tmp_path: Path) -> None:
    child: Any = SimpleNamespace(pid=77)
    worker = Worker(
        rank=1, incarnation=0, child=child, context=str(tmp_path / "none"), error_file=""
    )
    gone = Gone(rank=1, code=-signal.SIGKILL, ours=False)
    ending = Ending(worker, gone, LastWords("", ()), 0.0, "n0", starved=True)

    left, exited = ending.messages()
    record = ending.record()

    assert exited.starved and left.by_itself
    assert record.reason == "rank 1 was ended by signal 9 (out of memory)"
    assert record.fields["oom"] is True
