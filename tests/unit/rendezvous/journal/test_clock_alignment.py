"""Wall clocks that are an hour apart, or jump, change no order and no verdict."""

from pathlib import Path

import pytest

from recoverrun.reports.root_cause import root_cause
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.records import Json, Record

HOUR_S = 3600.0
WALL = 1_790_000_000.0


class Node:
    """Writes a journal with a wall clock that is `ahead` of what it should be."""

    def __init__(self, run_dir: Path, name: str, ahead: float, booted: float) -> None:
        self.name, self.ahead, self._booted = name, ahead, booted
        self._journal = Journal(journal_path(run_dir, name), name, 0.0)

    def write(self, now: float, event: str, reason: str, **fields: Json) -> None:
        wall = WALL + now + self.ahead
        self._journal.append(Record(event, reason, fields), mono=now + self._booted, wall=wall)
        assert self._journal.flush(30.0)

    def start(self, now: float) -> None:
        self.write(
            now, "run.start", "", run_id="r", argv=["train.py"], world_size=2, nnodes=2,
            version="1", inject="",
        )  # fmt: skip

    def exit(self, now: float, rank: int, error: str) -> None:
        self.write(
            now, "worker.exit", error, rank=rank, pid=rank, code=1, signal=0, ours=False,
            error=error,
        )  # fmt: skip


def _run(run_dir: Path, ahead: float, jump: float = 0.0) -> tuple[Node, Node]:
    """Node "a" coordinates. The clock of "b" is `ahead`, and then jumps."""
    a, b = Node(run_dir, "a", 0.0, 5.0), Node(run_dir, "b", ahead, 77.0)
    a.start(1.0)
    for node in (a, b):
        a.write(1.0, "node.join", "", name=node.name, nproc=1)
    b.start(1.01)
    b.ahead += jump
    return a, b


@pytest.mark.parametrize("ahead", [0.0, HOUR_S, -HOUR_S, 30.0])
@pytest.mark.parametrize("jump", [0.0, HOUR_S, -HOUR_S])
def test_the_first_fault_is_the_root_whatever_the_clocks_say(
    tmp_path: Path, ahead: float, jump: float
) -> None:
    a, b = _run(tmp_path, ahead, jump)
    a.exit(9.0, 0, "ValueError: first")
    b.exit(12.0, 1, "OSError: second")

    log = read_run(tmp_path)

    root = root_cause(log)
    assert root is not None and (root.rank, root.tied) == (0, ())
    ends = [entry.ts - WALL for entry in log.of("worker.exit")]
    assert ends == pytest.approx([9.0, 12.0], abs=0.1)


def test_a_fault_of_the_node_whose_clock_is_late_is_not_the_root_when_it_is_first(
    tmp_path: Path,
) -> None:
    a, b = _run(tmp_path, HOUR_S)
    b.exit(9.0, 1, "OSError: first")
    a.exit(12.0, 0, "ValueError: second")

    root = root_cause(read_run(tmp_path))

    assert root is not None and root.rank == 1


def test_clocks_that_are_kept_right_are_left_alone(tmp_path: Path) -> None:
    a, b = _run(tmp_path, 0.3)
    a.write(2.0, "notice.give", "", rank=0)
    b.write(2.1, "notice.give", "", rank=1)

    log = read_run(tmp_path)

    assert [entry.ts - WALL for entry in log.of("notice.give")] == pytest.approx([2.0, 2.4])
