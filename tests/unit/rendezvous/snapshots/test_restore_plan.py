"""The snapshot that all ranks go back to: the newest that each of them has, where it is to run."""

import pytest

from rendezvous.protocol.snapshot_messages import Share
from rendezvous.snapshots.identity import SnapshotId, on_disk
from rendezvous.snapshots.restore_plan import (
    Node,
    arranged,
    plan,
    planned,
    read,
    sources,
    start_in,
    written,
)


def _held(*of: tuple[int, int, int, int]) -> tuple[tuple[int, int, int, int, int], ...]:
    """(attempt, step, world, rank)."""
    return tuple((*one, 100) for one in of)


def test_the_newest_that_all_have() -> None:
    both = _held((0, 5, 2, 0), (0, 5, 2, 1), (0, 9, 2, 0))

    assert plan([(2, both, ())]) == SnapshotId(0, 5)


def test_a_newer_attempt_counts_more_than_a_higher_step() -> None:
    assert plan([(1, _held((0, 50, 1, 0), (1, 45, 1, 0)), ())]) == SnapshotId(1, 45)


def test_parts_count_on_the_node_that_has_the_rank() -> None:
    first, second = _held((0, 5, 2, 0)), _held((0, 5, 2, 1))

    assert plan([(1, first, ()), (1, second, ())]) == SnapshotId(0, 5)
    assert plan([(1, second, ()), (1, first, ())]) is None


def test_a_snapshot_of_another_number_of_ranks_is_none() -> None:
    assert plan([(1, _held((0, 5, 2, 0)), ())]) is None


@pytest.mark.parametrize("nodes", [[], [(2, (), ())], [(1, _held((0, 5, 2, 0)), ()), (1, (), ())]])
def test_where_a_part_is_missing_there_is_none(
    nodes: list[tuple[int, tuple[()], tuple[()]]],
) -> None:
    assert plan(nodes) is None


MEMBERS = ((0, 1), (1, 1), (2, 1))
OF = SnapshotId(0, 5)


def _share(slot: int, level: int = 1) -> Share:
    return (*OF, 3, level, slot, MEMBERS)


def _node(rank: int, *slots: int, level: int = 1) -> Node:
    """That of a rank, with parity of these slots."""
    return 1, _held((*OF, 3, rank)), tuple(_share(slot, level) for slot in slots)


EMPTY: Node = (1, (), ())


def test_the_part_of_a_lost_node_is_rebuilt_by_its_group() -> None:
    nodes = [_node(0, 0), EMPTY, _node(2, 2)]

    assert plan(nodes) == OF
    assert sources(nodes, OF) == ((1, MEMBERS, (0, -1, 2), (0, -1, 2)),)


def test_two_lost_nodes_are_rebuilt_where_that_was_wanted() -> None:
    assert plan([_node(0, 0), EMPTY, EMPTY]) is None
    assert plan([_node(0, 0, level=2), EMPTY, EMPTY]) == OF


def test_parity_that_is_missing_is_a_loss_as_well() -> None:
    assert plan([_node(0, 0), EMPTY, _node(2)]) is None
    assert plan([_node(0, 0), _node(1), _node(2)]) == OF


def test_parts_are_brought_from_the_node_that_has_them() -> None:
    nodes = [_node(1, 1), _node(0, 0), _node(2, 2)]

    assert plan(nodes) == OF
    assert sources(nodes, OF) == ((1, MEMBERS, (1, 0, 2), (1, 0, 2)),)


def test_where_all_is_in_place_nothing_is_brought() -> None:
    assert sources([_node(0, 0), _node(1, 1), _node(2, 2)], OF) == ()


def _kept(rank: int, *of: tuple[int, int]) -> Node:
    """The directory of a node: (start, step)."""
    return 1, _held(*((*on_disk(start, step), 2, rank) for start, step in of)), ()


def test_of_what_is_on_disks_the_latest_start_counts_and_not_the_step() -> None:
    assert plan([_kept(0, (6, 40), (7, 5)), _kept(1, (7, 5), (6, 40))]) == on_disk(7, 5)


def test_memory_comes_before_disks() -> None:
    node = 1, (*_held((0, 5, 1, 0)), *_held((*on_disk(9, 90), 1, 0))), ()

    assert plan([node]) == SnapshotId(0, 5)


def test_parts_that_two_runs_have_written_are_no_snapshot() -> None:
    assert plan([_kept(0, (7, 40)), _kept(1, (6, 40))]) is None
    assert plan([_kept(0, (7, 40), (6, 35)), _kept(1, (6, 40), (6, 35))]) == on_disk(6, 35)


def test_nodes_that_came_in_another_order_get_the_ranks_of_their_directories() -> None:
    first, second, empty = _kept(0, (7, 40)), _kept(1, (7, 40)), (1, (), ())

    assert list(arranged([first, second])) == [0, 1]
    assert list(arranged([second, first])) == [1, 0]
    assert plan([second, first]) is None
    assert list(arranged([second, empty])) == [0, 1]
    both = 1, (*first[1], *second[1]), ()
    assert list(arranged([both, both])) == [0, 1]


def test_what_is_on_a_disk_is_kept_as_one_of_the_attempt_that_begins_with_it() -> None:
    told = planned([_kept(0, (7, 40)), _kept(1, (7, 40))], 2)

    assert told == "2:40@7"
    assert (read(told), start_in(told)) == (SnapshotId(2, 40), 7)
    assert start_in("0:40") == -1


def test_a_plan_is_read_as_it_was_written() -> None:
    assert read(written(SnapshotId(3, 70), 5)) == SnapshotId(3, 70)
    assert written(None, 5) == ""
    for text in ("", ":", "1", "a:1", "1:", "-1:2", "1:2:3", "1:2@", "1:2@a"):
        assert read(text) is None
