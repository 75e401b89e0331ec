"""Generations that end in the middle of a reduction, and memory that is used again."""

import pytest
import torch

from ft_collectives.communicators import fabric as fabric_module
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Communicator
from tests.numerics.test_reduce import SIZES, Wire, World, view


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
    before = set(fabric_module._buried)
    world = World({"a": 4})
    world.wires[1].by_itself = False
    world.reducer.offer("a", 1)
    staging = world.wires[1].begun[0].staging
    world.meet(2)

    world.reducer.finish(2)

    kept = set(fabric_module._buried) - before
    world.wires[1].begun[0].end()  # after all

    assert kept == {id(staging)}
    assert set(fabric_module._buried) == before


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
    kept = set(fabric_module._buried)
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
    assert set(fabric_module._buried) == kept


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
