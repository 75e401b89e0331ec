"""A newcomer's generators that draw random numbers come to where the others' wait."""

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recoverrun.worker.arrival import drawing_generators, generator_states
from recoverrun.worker.arrival.generator_states import Below
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.microbatches import LoopFrame
from tests.unit.worker.data.test_generator_source import Play

OWN = frozenset({__name__})


def draws() -> Iterator[tuple[int, float]]:
    given = 0
    while True:
        while random.random() < 0.5:  # it is not known before how often it draws
            given += 1
        yield given, random.random()


def counts() -> Iterator[int]:
    yield from range(100)


def source_of(make: Any, items: int, seed: int) -> GeneratorSource:
    random.seed(seed)
    runtime: Any = Play()
    source = GeneratorSource(make(), make.__name__, runtime, 0, make)
    for _ in range(items):
        next(source)
    return source


def stack_of(source: Any) -> list[LoopFrame]:
    header = SimpleNamespace(targets=frozenset[str]())
    return [LoopFrame(cast(Loop, header), 1, items=source)]


def told(source: GeneratorSource, tries: Any = lambda found: None) -> Any:
    found = drawing_generators.drawing(stack_of(source), Holdings(), OWN)
    return drawing_generators.told(found, Packing([]), tries)


def put(said: Any, source: Any, drew: Sequence[Any]) -> None:
    found = generator_states.below(stack_of(source), Holdings(), OWN)
    drawing_generators.put(said, found, [], [], drawing_generators.drew(drew, OWN))


def test_it_goes_on_from_where_the_others_wait() -> None:
    there = source_of(draws, 7, seed=3)
    said = told(there)

    random.seed(99)
    drawing_generators.begin(said, "loop 0")
    here = source_of(draws, 0, seed=5)
    drawing_generators.begin(said, "loop 0")
    for _ in range(7):
        next(here)
    put(said, here, [here])

    random.seed(11)
    expected = [next(there) for _ in range(5)]
    random.seed(11)
    assert [next(here) for _ in range(5)] == expected


def test_its_variables_are_those_of_the_others_whatever_it_has_drawn() -> None:
    there, here = source_of(draws, 7, seed=3), source_of(draws, 7, seed=4)
    assert _given(here) != _given(there)

    put(told(there), here, [here])

    assert _given(here) == _given(there)


def _given(source: GeneratorSource) -> int:
    generator: Any = source.generator
    return int(generator.gi_frame.f_locals["given"])


def test_it_may_be_counted() -> None:
    there, here = source_of(draws, 7, seed=3), source_of(draws, 7, seed=4)
    counted = enumerate(here)

    put(told(there), counted, [counted])

    assert _given(here) == _given(there)


def test_one_that_draws_nothing_is_not_told() -> None:
    """It may hold what is its rank's own: its items are passed, and that is all."""
    assert told(source_of(counts, 5, seed=3)) == []


def test_one_that_drew_and_was_not_told_is_refused() -> None:
    here = source_of(draws, 7, seed=4)

    with pytest.raises(NotReachable, match="draws random numbers as its items are passed again"):
        put([], here, [here])


def test_it_is_tried_before_it_is_promised() -> None:
    def refuses(found: Sequence[Below]) -> None:
        raise NotReachable(f"{found[0].name} does not come there")

    with pytest.raises(NotReachable, match="loop 0 does not come there"):
        told(source_of(draws, 3, seed=3), refuses)
