"""The slot and shard position of each rank."""

import pytest

from rendezvous.protocol.layout import Layout

HSDP = Layout(((0, 1), (2, 3), (4, 5)))
TENSOR_FIRST = Layout(((0, 2), (1, 3)))


def test_a_rank_has_a_slot_and_a_shard_position() -> None:
    assert HSDP.place(3) == (1, 1)
    assert TENSOR_FIRST.place(2) == (0, 1)


def test_the_ranks_of_slots_are_ascending() -> None:
    assert TENSOR_FIRST.ranks((1, 0)) == (0, 1, 2, 3)
    assert HSDP.ranks((2,)) == (4, 5)


def test_sizes_are_those_of_the_failure_free_run() -> None:
    assert (HSDP.slots, HSDP.shards, HSDP.world_size) == ((0, 1, 2), 2, 6)


@pytest.mark.parametrize(
    "replicas",
    [(), ((),), ((0, 1), (2,)), ((0, 1), (1, 2)), ((0, 1), (2, 4)), ((1, 2),)],
    ids=["none", "empty", "uneven", "overlap", "hole", "no rank 0"],
)
def test_replicas_that_do_not_partition_the_world_are_refused(
    replicas: tuple[tuple[int, ...], ...],
) -> None:
    with pytest.raises(ValueError, match="do not partition"):
        Layout(replicas)


def test_a_stranger_has_no_place() -> None:
    with pytest.raises(ValueError, match="rank 9"):
        HSDP.place(9)
