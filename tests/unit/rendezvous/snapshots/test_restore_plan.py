"""What all ranks go back to: the newest that each of them has, where it is to run."""

import pytest

from rendezvous.snapshots.identity import SnapshotId
from rendezvous.snapshots.restore_plan import plan, read, written


def _held(*of: tuple[int, int, int, int]) -> tuple[tuple[int, int, int, int, int], ...]:
    """(attempt, step, world, rank)."""
    return tuple((*one, 100) for one in of)


def test_the_newest_that_all_have() -> None:
    both = _held((0, 5, 2, 0), (0, 5, 2, 1), (0, 9, 2, 0))

    assert plan([(2, both)]) == SnapshotId(0, 5)


def test_a_newer_attempt_counts_more_than_a_higher_step() -> None:
    assert plan([(1, _held((0, 50, 1, 0), (1, 45, 1, 0)))]) == SnapshotId(1, 45)


def test_parts_count_on_the_node_that_has_the_rank() -> None:
    first, second = _held((0, 5, 2, 0)), _held((0, 5, 2, 1))

    assert plan([(1, first), (1, second)]) == SnapshotId(0, 5)
    assert plan([(1, second), (1, first)]) is None


def test_a_snapshot_of_another_number_of_ranks_is_none() -> None:
    assert plan([(1, _held((0, 5, 2, 0)))]) is None


@pytest.mark.parametrize("nodes", [[], [(2, ())], [(1, _held((0, 5, 2, 0))), (1, ())]])
def test_where_a_part_is_missing_there_is_none(nodes: list[tuple[int, tuple[()]]]) -> None:
    assert plan(nodes) is None


def test_a_plan_is_read_as_it_was_written() -> None:
    assert read(written(SnapshotId(3, 70))) == SnapshotId(3, 70)
    assert written(None) == ""
    for text in ("", ":", "1", "a:1", "1:", "-1:2", "1:2:3"):
        assert read(text) is None
