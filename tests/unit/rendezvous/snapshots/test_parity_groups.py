"""Groups of nodes: who is with whom, and where each stripe has its columns."""

from itertools import combinations

import pytest

from rendezvous.snapshots.parity_groups import (
    GROUP_MOST,
    ParityGroup,
    chunk_bytes,
    dealt,
    groups_of,
)

GROUPS = [
    ParityGroup(level, tuple((slot, 1) for slot in range(size)))
    for size in range(2, GROUP_MOST + 1)
    for level in (1, 2)
    if level < size
]


@pytest.mark.parametrize("nodes", [*range(1, 40), 64, 2048])
def test_groups_are_small_and_alike_and_have_everybody_once(nodes: int) -> None:
    groups = dealt(nodes)
    sizes = {len(group) for group in groups}

    assert sorted(node for group in groups for node in group) == list(range(nodes))
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= GROUP_MOST


def test_neighbours_are_in_different_groups() -> None:
    assert dealt(16) == [tuple(range(0, 16, 2)), tuple(range(1, 16, 2))]


def test_a_single_node_has_no_group_and_two_survive_the_loss_of_one() -> None:
    assert groups_of([4], 1) == []
    assert groups_of([4, 4], 0) == []
    assert groups_of([4, 2], 2) == [((0, 1), ParityGroup(1, ((0, 4), (4, 2))))]


def test_the_example_of_the_docstring() -> None:
    group = GROUPS[[one.size for one in GROUPS].index(4)]

    assert group.data_slots(1) == (0, 2, 3)
    assert [group.chunk(2, stripe, 9) for stripe in (0, 1, 3)] == [(0, 3), (3, 6), (6, 9)]
    assert group.kept_at(2) == (2,)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_parity_lies_where_there_is_no_chunk_of_the_stripe(group: ParityGroup) -> None:
    for slot in range(group.size):
        assert len(group.stripes_of(slot)) == group.data_columns
        for kind, stripe in enumerate(group.kept_at(slot)):
            assert group.parity_slots(stripe)[kind] == slot
            assert slot not in group.data_slots(stripe)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("length", [0, 1, 7, 100, 1001])
def test_chunks_are_the_whole_stream(group: ParityGroup, length: int) -> None:
    for slot in range(group.size):
        chunks = [group.chunk(slot, stripe, length) for stripe in group.stripes_of(slot)]

        assert [chunk.begin for chunk in chunks[1:]] == [chunk.end for chunk in chunks[:-1]]
        assert (chunks[0].begin, chunks[-1].end) == (0, length)
        assert max(end - begin for begin, end in chunks) == min(length, chunk_bytes(group, length))


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_as_many_may_be_lost_as_the_level_says(group: ParityGroup) -> None:
    slots = set(range(group.size))
    for many in range(group.size):
        for lost in combinations(slots, many):
            left = slots - set(lost)
            possible = all(group.can_have(slot, left, left) for slot in lost)

            assert possible == (many <= group.level)
