"""The reducer of gradient buckets: order, overlap, and generations that end in the middle."""

import pytest
import torch

from ft_collectives.communicators import left_memory
from ft_collectives.communicators.channel import Communicator
from ft_collectives.communicators.errors import Superseded
from tests.numerics.reducer_world import SIZES, Wire, World, view


def test_buckets_start_in_the_order_in_which_they_were_included() -> None:
    world = World(SIZES)
    world.reducer.begin()
    world.reducer.include(["b", "a"])
    world.reducer.include(["a", "c", "b"])  # each has its place already, but for "c"

    world.reducer.finish(1)

    assert world.sizes_begun(1) == [2, 1, 3]
    assert world.launched == [0, 1, 2]


def test_what_is_not_included_is_not_reduced() -> None:
    world = World(SIZES)
    world.reducer.begin()
    world.reducer.include("ac")

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.sizes_begun(1) == [1, 3]
    assert world.given == {"a": [2.0], "c": [2.0] * 3}


def test_a_transaction_without_buckets_reduces_nothing() -> None:
    world = World(SIZES)
    world.reducer.begin()

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.sizes_begun(1) == []
    assert world.given == {}


def test_what_is_offered_first_is_included() -> None:
    world = World(SIZES)
    world.reducer.begin()
    for key in "cab":
        world.reducer.offer(key, 1)

    assert world.sizes_begun(1) == [3, 1, 2]


def test_a_gradient_that_was_made_up_is_part_of_the_sum() -> None:
    world = World(SIZES)
    world.sums["a"] += 4
    piece = world.reducer.piece(carried=False)
    world.sums["a"] -= 4
    world.reducer.add((1, 0), piece)
    world.reducer.add((1, 1), world.reducer.piece(carried=False))

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.given == {"a": [14.0], "b": [6.0] * 2, "c": [6.0] * 3}


def test_what_was_made_up_is_kept_until_the_step_ends() -> None:
    world = World(SIZES)
    world.reducer.add((1, 0), world.reducer.piece(carried=False))
    world.wires[1].by_itself = False
    world.reducer.offer("a", 1)
    world.meet(2)  # in the middle: all is reduced again
    world.reducer.finish(2)
    world.reducer.deliver()
    again = dict(world.given)
    world.reducer.begin()
    world.reducer.include(SIZES)

    world.reducer.finish(2)
    world.reducer.deliver()

    assert again == {"a": [4.0], "b": [4.0] * 2, "c": [4.0] * 3}
    assert world.given == {"a": [2.0], "b": [2.0] * 2, "c": [2.0] * 3}


def test_a_piece_holds_what_gradients_had_before_if_that_is_asked_for() -> None:
    world = World({"a": 2})

    def carry(staging: torch.Tensor) -> bool:
        staging.fill_(10.0)
        return True

    world.reducer.register(world.bucket("a", 2, carry=carry))

    assert world.reducer.piece(carried=False)["a"].tolist() == [1.0, 1.0]
    assert world.reducer.piece(carried=True)["a"].tolist() == [11.0, 11.0]


def test_offers_out_of_order_wait_for_their_turn() -> None:
    world = World(SIZES)
    begun = []
    for key in ("c", "a", "b"):
        world.reducer.offer(key, 1)
        begun.append(world.sizes_begun(1))

    assert begun == [[], [1], [1, 2, 3]]


def test_what_was_not_offered_is_reduced_at_the_end() -> None:
    world = World(SIZES)
    world.reducer.offer("a", 1)

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.sizes_begun(1) == [1, 2, 3]
    assert world.given == {"a": [2.0], "b": [2.0] * 2, "c": [2.0] * 3}


def test_nothing_is_delivered_before_all_is_reduced() -> None:
    world = World(SIZES)
    world.reducer.offer("a", 1)

    with pytest.raises(AssertionError, match="INV-5"):
        world.reducer.deliver()
    assert not world.given


def test_nothing_is_delivered_while_it_is_reduced_again() -> None:
    world = World(SIZES)
    world.reducer.finish(1)
    world.meet(2)
    world.wires[2].by_itself = False
    world.reducer.offer("a", 2)  # of no use before the commit point
    world.meet(3)

    world.reducer._launch_up_to(1, 3)

    with pytest.raises(AssertionError, match="INV-5"):
        world.reducer.deliver()


def test_what_was_held_when_the_generation_ended_can_be_delivered() -> None:
    world = World(SIZES)
    world.reducer.finish(1)

    world.meet(2)
    world.reducer.deliver()

    assert world.given["c"] == [2.0] * 3


def test_a_generation_that_ends_in_the_middle_starts_all_again_on_fresh_memory() -> None:
    world = World(SIZES)
    world.wires[1].by_itself = False
    for key in SIZES:
        world.reducer.offer(key, 1)
    world.meet(2)
    with pytest.raises(Superseded):
        world.reducer.finish(1)
    for accumulator in world.sums.values():
        accumulator += 10  # a lost microbatch was made up

    world.reducer.finish(2)
    for late in world.wires[1].begun:
        late.staging.fill_(-1)  # a slow peer writes now
    world.reducer.deliver()

    assert world.sizes_begun(2) == [1, 2, 3]
    assert world.given == {"a": [22.0], "b": [22.0] * 2, "c": [22.0] * 3}


def test_what_is_left_behind_is_kept_for_a_late_writer() -> None:
    before = set(left_memory._held)
    world = World({"a": 4})
    world.wires[1].by_itself = False
    world.reducer.offer("a", 1)
    staging = world.wires[1].begun[0].staging
    world.meet(2)

    world.reducer.finish(2)

    kept = set(left_memory._held) - before
    world.wires[1].begun[0].end()  # after all

    assert kept == {id(staging)}
    assert set(left_memory._held) == before


def test_an_accumulator_that_was_final_before_a_loss_has_to_be_offered_again() -> None:
    """While a lost microbatch is made up, gradients arrive in the same order once more."""
    world = World(SIZES)
    world.wires[2] = Wire()
    held = world.fabric._connect
    world.fabric._connect = lambda *_: None  # type: ignore[method-assign]
    world.fabric.change(view(2))
    for key in SIZES:
        world.reducer.offer(key, 2)  # final, but nothing is connected yet
    world.fabric._connect = held  # type: ignore[method-assign]
    world.meet(3)

    world.reducer.offer("a", 3)

    assert world.sizes_begun(3) == [1]


def test_an_offer_of_an_older_generation_starts_nothing() -> None:
    world = World(SIZES)
    world.meet(2)

    world.reducer.offer("a", 1)

    assert world.sizes_begun(1) == world.sizes_begun(2) == []


def test_a_step_reuses_the_memory_of_the_one_before() -> None:
    world = World(SIZES)
    kept = set(left_memory._held)
    pointers = []
    for _ in range(50):
        world.reducer.include(SIZES)
        world.reducer.finish(1)
        staged = [bucket.staging for bucket in world.reducer.buckets.values()]
        assert all(one is not None for one in staged)
        pointers.append([one.data_ptr() for one in staged if one is not None])
        world.reducer.deliver()
        world.reducer.begin()

    assert all(one == pointers[0] for one in pointers)
    assert set(left_memory._held) == kept


def test_gradients_that_become_views_are_not_reduced_over() -> None:
    world = World({})
    kept: list[torch.Tensor] = []
    bucket = world.bucket("a", 2, keeps=True)
    world.sums["a"] = torch.ones(2)
    bucket.deliver = kept.append
    world.reducer.register(bucket)
    for _ in range(2):
        world.reducer.include("a")
        world.reducer.finish(1)
        world.reducer.deliver()
        world.reducer.begin()
        world.sums["a"] += 1

    assert [one.tolist() for one in kept] == [[2.0, 2.0], [4.0, 4.0]]


def test_a_bucket_of_another_kind_gets_memory_of_its_own() -> None:
    world = World({"a": 2})
    world.reducer.finish(1)
    before = world.reducer.buckets["a"].staging
    world.reducer.begin()

    bucket = world.bucket("a", 2)
    bucket.dtype = torch.float64
    world.reducer.register(bucket)
    world.reducer.include("a")
    world.reducer.finish(1)

    assert bucket.staging is not None and bucket.staging.dtype == torch.float64
    assert before is not None and before.dtype == torch.float32


def test_after_the_buckets_are_forgotten_new_ones_take_their_place() -> None:
    world = World(SIZES)
    world.reducer.offer("a", 1)
    world.reducer.forget()
    world.sums["z"] = torch.ones(5)
    world.reducer.register(world.bucket("z", 5))

    world.reducer.offer("z", 1)
    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.sizes_begun(1) == [1, 5]
    assert world.given == {"z": [2.0] * 5}


def test_alone_a_sum_is_what_it_was() -> None:
    world = World(SIZES)
    world.fabric.change(view(2))
    world.fabric.ready(world.reducer.channel)
    world.reducer.channel.now = Communicator(2, (0,), None)

    world.reducer.finish(2)
    world.reducer.deliver()

    assert world.given["c"] == [1.0] * 3
