"""The processes that an ordered fault ends: found among the children of one launcher, by name."""

import os
import signal
from pathlib import Path

import pytest

from rendezvous.bays.node_processes import end_keeper, end_worker


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A launcher, 7, of two threads; and a child that ends as one looks."""
    for thread, children in ((7, "11 12 "), (8, "13 14 ")):
        (tmp_path / f"7/task/{thread}").mkdir(parents=True)
        (tmp_path / f"7/task/{thread}/children").write_text(children)
    for pid, name in ((11, "r1:train.py"), (13, "keeper:"), (14, "r10:train.py")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    return tmp_path


def test_each_is_found_by_its_name(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append((pid, number)))

    end_keeper(7, proc)
    end_worker(7, 10, proc)

    assert ended == [(13, signal.SIGKILL), (14, signal.SIGKILL)]


def test_who_is_not_there_is_not_found(proc: Path) -> None:
    with pytest.raises(LookupError, match="no process r2:"):
        end_worker(7, 2, proc)
