"""The runtime's knowledge of a microbatch: the iterations around it, and its place in each."""

import ast
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.analysis.call_graph import BackwardNames
from recoverrun.worker.context.observer import TorchObserver
from recoverrun.worker.instrumentation import RUNTIME_NAME
from recoverrun.worker.rewriting.loop_transformer import instrument
from recoverrun.worker.tracking.loop_tracker import LoopTracker
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace, Top
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

pytestmark = pytest.mark.usefixtures("streams_put_back")

SCRIPT = """
def flat(items, backward):
    for item in items:
        backward(item)

def inner(steps, parts, backward):
    for step in steps:
        for part in parts:
            backward((step, part))

def twice(items, backward):
    for item in items:
        backward(item)
        backward(item)

def left(items, backward):
    for item in items:
        for part in range(3):
            if part:
                break
            backward(item)
        backward(item)

def endless(backward):
    count = 0
    while True:
        count += 1
        backward(count)
        if count == 3:
            break

def yielding(items, backward):
    for epoch in range(2):
        for item in items:
            backward(item)
            yield item

def whiling(items, backward):
    left = list(items)
    while left:
        backward(left.pop())
        yield left

def before(items, backward):
    for item in items:
        yield item
        backward(item)

def alone(backward):
    backward(None)

def leading(items, rank, told, backward):
    for item in items:
        if rank == 0:
            told.append(item)
        backward(item)

def fails(items, backward):
    for item in items:
        raise ValueError("no data")
"""

Where = list[tuple[str, int, int]]
"""Of one microbatch, innermost first: function, iteration, backwards of it before this one."""


class Play:
    """A script whose `backward` is the name of all that trains."""

    def __init__(self) -> None:
        self.runtime = ScriptRuntime(0)
        self.tracker = LoopTracker(self.runtime)
        self.runtime.observer = TorchObserver()
        made = instrument(
            ast.parse(SCRIPT), "s.py", BackwardNames(frozenset({"backward"}), frozenset())
        )
        for loop in made.loops:
            self.tracker.register(loop)
        namespace: dict[str, Any] = {RUNTIME_NAME: self.tracker, "__name__": "s"}
        exec(made.code, namespace)
        self.script = SimpleNamespace(**namespace)
        self.noted: list[Microbatch | None] = []

    def backward(self, item: Any) -> None:
        self.noted.append(self.runtime.note_backward())

    def run(self, function: str, *args: Any) -> list[Where]:
        getattr(self.script, function)(*args, self.backward)
        return [where(one) for one in self.noted if one is not None]


def where(microbatch: Microbatch) -> Where:
    lines = {loop.line: loop.qualname for loop in (p.top.loop for p in microbatch.places)}
    return [
        (lines[place.top.loop.line], place.top.iteration, place.skip) for place in microbatch.places
    ]


# --------------------------------------------------------------------------- places


def test_one_backward_an_iteration_is_one_microbatch_each() -> None:
    play = Play()

    assert play.run("flat", "abc") == [[("flat", 0, 0)], [("flat", 1, 0)], [("flat", 2, 0)]]
    assert [one.index for one in play.runtime.microbatches] == [0, 1, 2]


@pytest.mark.parametrize("parts", [range(2), [0, 1]], ids=["range", "items"])
def test_a_microbatch_lies_in_every_loop_around_it(parts: Any) -> None:
    assert Play().run("inner", [0, 1], parts) == [
        [("inner", 0, 0), ("inner", 0, 0)],
        [("inner", 1, 0), ("inner", 0, 1)],
        [("inner", 0, 0), ("inner", 1, 0)],
        [("inner", 1, 0), ("inner", 1, 1)],
    ]


def test_a_second_backward_of_an_iteration_passes_over_the_first() -> None:
    assert Play().run("twice", "ab") == [
        [("twice", 0, 0)], [("twice", 0, 1)], [("twice", 1, 0)], [("twice", 1, 1)]
    ]  # fmt: skip


def test_a_loop_is_told_before_its_first_item_is_drawn() -> None:
    play, told = Play(), list[str]()
    play.runtime.on_loop = lambda: told.append("begins")

    def items() -> Iterator[int]:
        for number in range(2):
            told.append("drawn")
            yield number

    play.run("flat", items())

    assert told == ["begins", "drawn", "drawn"]


def test_a_loop_that_was_left_without_a_word_is_over() -> None:
    assert Play().run("left", "ab") == [
        [("left", 0, 0), ("left", 0, 0)], [("left", 0, 1)],
        [("left", 0, 0), ("left", 1, 0)], [("left", 1, 1)],
    ]  # fmt: skip


def test_a_loop_that_an_error_ended_is_over() -> None:
    play = Play()
    with pytest.raises(ValueError, match="no data"):
        play.run("fails", "a")

    assert play.run("flat", "a") == [[("flat", 0, 0)]]


def test_iterations_of_a_while_loop_count_too() -> None:
    assert Play().run("endless") == [[("endless", n, 0)] for n in range(3)]


def test_without_a_loop_there_is_no_microbatch_and_a_reason() -> None:
    play = Play()

    assert play.run("alone") == [] and play.noted == [None]
    assert "no loop of the script's own code" in play.runtime.why_no_loop()
    play.tracker.refuse("train.py", "it is written in C")
    assert play.runtime.why_no_loop() == "train.py: it is written in C"


def test_it_is_executed_again_from_the_iteration_that_was_found_to_give_it() -> None:
    play = Play()
    play.run("inner", [0], [0])
    (first,) = play.runtime.microbatches
    assert (first.chosen, first.top.iteration) == (0, 0)
    inner, outer = first.places
    play.runtime.outward[inner.top.loop.id] = 1

    play.run("inner", [0], [0])

    again = play.runtime.microbatches[-1]
    assert again.chosen == 1 and again.place is again.places[1]
    assert again.top.loop.id == outer.top.loop.id


def test_one_further_out_than_there_are_is_the_outermost() -> None:
    tops: Any = [SimpleNamespace(name="inner"), SimpleNamespace(name="outer")]
    microbatch = Microbatch(0, tuple(MicrobatchPlace(top, 0) for top in tops), chosen=2)

    assert microbatch.top is tops[1]


# --------------------------------------------------------------------------- transactions


def test_a_transaction_begins_with_no_microbatch_and_in_the_same_iteration() -> None:
    """One that accumulates without `no_sync` has several of them in an iteration."""
    play = Play()
    seen: list[Where] = []

    def backward(item: Any) -> None:
        microbatch = play.runtime.note_backward()
        assert microbatch is not None and microbatch.index == 0
        seen.append(where(microbatch))
        play.runtime.begin_step()
        assert play.runtime.microbatches == []

    play.script.twice("a", backward)

    assert seen == [[("twice", 0, 0)], [("twice", 0, 1)]]


def test_what_another_rank_s_code_does_is_not_noted() -> None:
    play = Play()
    tops: list[Top] = []
    play.runtime.on_top = tops.append
    play.runtime.mode.acting_rank = 1
    play.script.flat("ab", lambda item: None)
    assert tops == [] and play.runtime.stack == []

    play.runtime.mode.acting_rank = None
    play.script.flat("ab", lambda item: None)

    assert [one.iteration for one in tops] == [0, 1]


def test_a_loop_trains_once_a_backward_was_seen_in_it() -> None:
    play = Play()
    tops: list[Top] = []
    play.runtime.on_top = tops.append
    play.run("flat", "a")
    play.script.inner([0], [0], lambda item: None)

    assert [play.runtime.trains(top.loop) for top in tops] == [True, False, False]


# --------------------------------------------------------------------------- what is seen


def test_what_the_body_binds_before_it_reads_is_not_kept() -> None:
    tops: list[Top] = []
    play = Play()
    play.runtime.on_top = tops.append

    play.script.endless(lambda count: None)

    assert [top.names["count"] for top in tops] == [0, 1, 2]
    tops.clear()
    play.script.flat("ab", print_nothing := lambda item: None)
    assert [top.names["item"] for top in tops] == ["a", "b"]
    assert all(top.names["backward"] is print_nothing for top in tops)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_microbatch_seeds_torch_s_numbers_before_it_draws_or_after(drawn: bool) -> None:
    play = Play()

    def backward(step: int) -> None:
        if drawn:
            torch.rand(1)
        if step:
            play.runtime.seeding()
            torch.manual_seed(step)
            torch.rand(1)
            play.runtime.seeding()  # again: the first one counts
            torch.manual_seed(step)
        play.runtime.note_backward()

    play.script.flat(range(3), backward)

    assert [one.top.seeded for one in play.runtime.microbatches] == [False, not drawn, not drawn]


@pytest.mark.parametrize("drawn", [False, True])
def test_code_in_another_rank_s_place_must_seed_before_it_draws(drawn: bool) -> None:
    runtime = ScriptRuntime(own_rank=0)
    runtime.observer = TorchObserver()
    runtime.mode.acting_rank = 1
    runtime.mode.untold = runtime.observer.streams()
    if drawn:
        torch.rand(1)

    runtime.seeding()

    assert (runtime.mode.untold is not None) == drawn


# --------------------------------------------------------------------------- the one after


def test_the_first_microbatch_of_a_transaction_is_known_in_the_next_one() -> None:
    play = Play()
    assert play.runtime.previous is None
    play.run("flat", "ab")
    first = play.runtime.microbatches[0]

    play.runtime.begin_step()

    assert play.runtime.previous is first and play.runtime.microbatches == []


def test_it_is_not_known_any_longer() -> None:
    """Neither after another transaction, nor after one in which nothing was run."""
    play = Play()
    play.run("flat", "ab")
    play.runtime.begin_step()
    play.run("flat", "cd")
    first = play.runtime.microbatches[0]

    play.runtime.begin_step()
    assert play.runtime.previous is first
    play.runtime.begin_step()

    assert play.runtime.previous is None
