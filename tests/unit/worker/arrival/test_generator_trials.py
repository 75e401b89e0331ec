"""The way back of generators is tried by the code that goes it."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.worker.arrival import generator_trials, inner_iterators
from recoverrun.worker.arrival.generator_states import Below, Stateful
from recoverrun.worker.arrival.generator_trials import GeneratorTrials, tried
from recoverrun.worker.errors import NotKnownYet, NotReachable
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.held_trials import HeldTrials

shared: dict[str, float] = {}


def begun(make: Callable[[], Iterator[Any]], count: int) -> Stateful:
    """One that has given so many items, between which others have drawn numbers."""
    one, began = make(), read_streams()
    for _ in range(count):
        next(one)
        random.random()
        torch.rand(3)
    source = SimpleNamespace(make=make, count=count, began=began)
    return Stateful(one, cast("Any", source))


def draws() -> Iterator[torch.Tensor]:
    seen = torch.zeros(2)
    while True:
        for row in torch.randperm(5).tolist():
            seen = seen + torch.randn(2) * row
            yield seen


def rejects() -> Iterator[float]:
    """The place of its loop depends on what it has drawn."""
    for number in range(1000):
        if random.random() < 0.5:
            yield number


def by_level() -> Iterator[float]:
    while True:
        if shared.setdefault("level", 1) < 4:
            yield 1.0
        else:
            yield 2.0
        shared["level"] += 1


def hides() -> Iterator[float]:
    lock = threading.Lock()
    while True:
        with lock:
            drawn = random.random()
        yield drawn


def hides_and_rests() -> Iterator[float]:
    lock = threading.Lock()
    while True:
        with lock:
            yield 1.0


def not_a_number() -> Iterator[torch.Tensor]:
    mean = torch.full((2,), float("nan"))
    while True:
        mean = mean + 1
        yield mean


def goes_over_objects() -> Iterator[int]:
    for number, _ in zip(range(9), [threading.Lock(), threading.Lock()] * 5, strict=False):
        for _ in (threading.Lock(), threading.Lock()):
            for _ in [threading.Lock(), threading.Lock()]:
                yield number


def ends() -> Iterator[float]:
    shared["left"] = shared.get("left", 3) - 1
    for _ in range(int(shared["left"]) * 2):
        yield 1.0


@pytest.mark.parametrize("make", [draws, hides_and_rests, not_a_number, goes_over_objects])
def test_what_comes_to_the_same_place_is_promised(make: Callable[[], Iterator[Any]]) -> None:
    torch.manual_seed(1)

    assert tried(begun(make, 7)) == ""


@pytest.mark.parametrize(
    ("make", "count", "why"),
    [
        (by_level, 3, "by_level does not come to the instruction at which it waited"),
        (hides, 3, "hides draws random numbers, and what lock holds in it cannot be told"),
        (ends, 3, "ends ended after 2 of 3 items"),
    ],
)
def test_what_does_not_is_told_before(
    make: Callable[[], Iterator[Any]], count: int, why: str
) -> None:
    random.seed(5)
    shared.clear()

    assert why in tried(begun(make, count))


def test_items_that_cannot_be_told_are_none_of_one_that_draws() -> None:
    assert "what batch holds in it cannot be told" in tried(begun(draws, 2), ["batch"])


def test_how_far_a_loop_has_come_by_other_numbers_is_put_in_place_or_told() -> None:
    """From Python 3.12 on a `range` knows only what is still to come: it cannot be moved back."""
    outcomes = set()
    for seed in range(8):
        random.seed(seed)
        outcomes.add(tried(begun(rejects, 5)))

    told = {inner_iterators.ELSEWHERE.format("range_iterator")}
    assert outcomes == {""} | (told if sys.version_info >= (3, 12) else set())


class Source:
    """The source of one generator, which has given `count` items."""

    make, began = staticmethod(draws), None

    def __init__(self, count: int) -> None:
        self.count = count


Answer = dict[str, Any] | forked_child.ChildFailed

LATE = forked_child.ChildLate("it did not end")


class Children:
    """Copies of the process, of which some come to no end."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.made = list(answers), 0

    def run(self, work: Callable[[], Any], within_s: float) -> dict[str, Any]:
        self.made += 1
        answer = self.answers.pop(0)
        if isinstance(answer, forked_child.ChildFailed):
            raise answer
        return answer


def trials(
    monkeypatch: pytest.MonkeyPatch, *answers: Answer
) -> tuple[Children, Callable[..., None]]:
    """Copies, and a look at a generator that gives many items from one to the next."""
    children, source = Children(*answers), cast("Any", Source(1))
    monkeypatch.setattr(generator_trials.forked_child, "run", children.run)
    one = GeneratorTrials(cast("Any", None))

    def look(*, made_anew: bool = False) -> None:
        nonlocal source
        source = cast("Any", Source(source.count)) if made_anew else source
        source.count *= 5
        one.require([Below("items", [Stateful(draws(), source)], loaders=[])], [], draws=False)

    return children, look


@pytest.mark.parametrize("answer", [LATE, {"failed": "it did not end"}])
def test_a_generator_that_was_never_tried_to_the_end_is_promised_nothing(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, look = trials(monkeypatch, answer)

    with pytest.raises(NotReachable, match="could not be read again .*it did not end"):
        look()


def test_a_later_trial_that_comes_to_no_end_is_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children, look = trials(monkeypatch, {"why": ""}, LATE)

    for _ in range(4):
        look()

    assert children.made == 2


def test_a_generator_of_a_later_pass_is_one_of_the_same_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children, look = trials(monkeypatch, {"why": ""}, LATE, {"why": "it differs"})

    look()
    look(made_anew=True)
    with pytest.raises(NotReachable, match="it differs"):
        look(made_anew=True)

    assert children.made == 3


def test_a_trial_that_takes_long_is_asked_for_later_and_holds_for_what_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = cast("Any", Source(5))
    below = Below("items", [Stateful(draws(), source)], loaders=[])
    answers: list[dict[str, Any] | None] = [None, None, {"why": ""}, {"why": "it differs"}]
    monkeypatch.setattr(HeldTrials, "run", lambda self, work, within_s: answers.pop(0))
    monkeypatch.setattr(HeldTrials, "answer", lambda self, wait_s=0.0: answers.pop(0))
    one = GeneratorTrials(cast("Any", None), 0.0)

    for _ in range(2):
        with pytest.raises(NotKnownYet, match="whether draws comes to the same place again"):
            one.require([below], [], draws=False)
        source.count += 1
    one.require([below], [], draws=False)
    one.require([below], [], draws=False)
    assert len(answers) == 1
    source.count = 20

    with pytest.raises(NotReachable, match="it differs"):
        one.require([below], [], draws=False)


@pytest.mark.parametrize("beside", [False, True])
def test_what_a_loader_has_drawn_asks_for_no_variables_of_a_generator_over_it(beside: bool) -> None:
    """Such as its sampler, which cannot be told."""
    one, source = hides(), SimpleNamespace(make=hides, draws_beside=beside)
    next(one)
    below = Below("items", [Stateful(one, cast("Any", source))], loaders=[cast("Any", None)])
    refused = pytest.raises(NotReachable, match="what lock holds") if beside else nullcontext()

    with refused:
        GeneratorTrials(cast("Any", None)).require([below], [], draws=True)
