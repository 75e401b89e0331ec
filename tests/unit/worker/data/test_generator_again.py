"""Generators of the script that are made anew for another rank, and read from their beginning."""

import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from recoverrun.worker.data import generator_again
from recoverrun.worker.data.generator_again import GeneratorAgain
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.generator_wrapper import maker, same_kind
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.registry import Registry
from recoverrun.worker.rng.streams import read_streams
from tests.unit.worker.data.test_generator_source import OTHER, Play, as_other

pytestmark = pytest.mark.usefixtures("streams_put_back")

NOW = {"rank": 0}
"""The rank for which code runs, as `rank_constants` would put it in place."""


@pytest.fixture(autouse=True)
def _as_ourselves() -> Iterator[None]:
    yield
    NOW["rank"] = 0


def share(limit: int) -> Iterator[int]:
    yield from range(NOW["rank"], limit, 3)


def again(function: Any, *args: Any) -> GeneratorAgain:
    make = maker(function, args, {})
    assert make is not None
    return GeneratorAgain(make, "share")


def test_a_generator_gives_the_items_of_the_rank_for_which_it_was_made() -> None:
    play, make = Play(), maker(share, (30,), {})
    feed = GeneratorSource(share(30), "share", play, 0, make)
    own = [next(feed) for _ in range(3)]
    NOW["rank"] = OTHER

    assert [as_other(play, feed, index) for index in (1, 2, 1)] == [5, 8, 5]
    NOW["rank"] = 0
    assert [*own, next(feed)] == [0, 3, 6, 9]
    assert play.spoiled == ""


def test_items_of_steps_that_are_over_are_read_again() -> None:
    made = again(share, 30)
    assert [made.item(OTHER, index, made.make) for index in (0, 1, 2)] == [0, 3, 6]
    made.begin_step(2)

    assert [made.item(OTHER, index, made.make) for index in (2, 0, 3)] == [6, 0, 9]


def test_a_rank_whose_data_end_before_ours_do() -> None:
    play = Play()
    feed = GeneratorSource(share(9), "share", play, 0, maker(share, (2,), {}))
    list(feed)

    as_other(play, feed, 1)

    assert play.spoiled == f"rank {OTHER} has run out of data, and this rank has not"


def pairs(items: Iterator[int], size: int) -> Iterator[list[int]]:
    """Packs what it is given, and begins with what one block had left over."""
    left = [next(items)]
    while True:
        left += [next(items) for _ in range(size)]
        yield left[:size]
        left = left[size:]


def served(play: Play, function: Any) -> Any:
    """The function as the script sees it."""
    numbers = itertools.count()

    def serve(*args: Any, **kwargs: Any) -> Any:
        make = maker(function, args, kwargs)
        name, number = function.__name__, 10 * len(function.__name__) + next(numbers)
        return GeneratorSource(function(*args, **kwargs), name, play, number, make)

    return same_kind(function, serve)


def chain(play: Play) -> tuple[Any, Any]:
    """A generator over another one of the script's, and that."""
    below = served(play, share)(90)
    return served(play, pairs)(items=below, size=2), below


def test_a_generator_is_made_anew_with_those_that_it_was_given() -> None:
    play = Play()
    packed, _ = chain(play)
    own = [next(packed) for _ in range(3)]
    NOW["rank"] = OTHER

    assert [as_other(play, packed.gi_yieldfrom, index) for index in (0, 2)] == [[2, 5], [14, 17]]
    NOW["rank"] = 0
    assert [*own, next(packed)] == [[0, 3], [6, 9], [12, 15], [18, 21]]
    assert play.spoiled == ""


def test_one_below_that_others_ask_too_cannot_be_read_again() -> None:
    play = Play()
    packed, below = chain(play)
    next(packed)
    next(below)
    next(packed)

    as_other(play, packed.gi_yieldfrom, 1)

    assert play.spoiled == "pairs gives data of a loader and others"


def test_one_below_that_has_begun_cannot_be_read_again() -> None:
    below = served(Play(), share)(90)
    next(below)

    assert maker(pairs, (below, 2), {}) is None


def drawing(generator: torch.Generator | None) -> Iterator[Any]:
    yield 0
    yield torch.rand(1, generator=generator) if generator else random.random()


@pytest.mark.parametrize("given", [True, False], ids=["its own", "of the process"])
def test_one_that_draws_on_the_way_is_not_read(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Registry()
    monkeypatch.setattr(generator_again, "REGISTRY", known)
    generator = torch.Generator().manual_seed(1) if given else None
    if given:
        known.note(generator, sys._getframe())
    made, before = again(drawing, generator), read_streams()
    state = generator.get_state() if generator else None

    made.item(OTHER, 0, made.make)
    with pytest.raises(NotReplayable, match="draws random numbers"):
        made.item(OTHER, 1, made.make)

    assert read_streams() == before
    if generator is not None:
        assert torch.equal(generator.get_state(), state)


def test_one_that_draws_for_its_first_item_is_resumed() -> None:
    play = Play()
    feed = GeneratorSource(
        (random.random() for _ in range(3)), "pieces", play, 0, maker(share, (3,), {})
    )
    next(feed)

    assert feed.again is None


def failing() -> Iterator[int]:
    raise ValueError("no file")
    yield 0


def test_an_error_is_a_reason() -> None:
    with pytest.raises(NotReplayable, match="no file"):
        made = again(failing)
        made.item(OTHER, 0, made.make)


def test_what_is_read_already_cannot_be_read_again() -> None:
    items = iter([1, 2])

    def rest() -> Iterator[int]:
        yield from items

    assert maker(share, (items,), {}) is None
    assert maker(share, (), {"limit": items}) is None
    assert maker(rest, (), {}) is None


@pytest.mark.parametrize("rank", [0, OTHER], ids=["this rank", "another"])
def test_what_another_rank_gave_a_generator_that_is_called_anew_has_to_be_known(rank: int) -> None:
    def numbers(start: int) -> Iterator[int]:
        yield from range(start, 9)

    play = Play(known=False)
    feed = GeneratorSource(numbers(5), "numbers", play, 0, lambda: numbers(5))
    next(feed)

    play.acting_rank = rank
    feed.seek(rank, 0)
    next(feed)

    assert ("was called anew after the last proof" in play.spoiled) is (rank == OTHER)


def test_a_generator_that_is_called_anew_is_made_by_the_call_of_the_other_rank() -> None:
    def numbers(start: int) -> Iterator[int]:
        yield from range(start, 9)

    play = Play(known=False, makes=lambda: numbers(7))
    feed = GeneratorSource(numbers(5), "numbers", play, 0, lambda: numbers(5))
    next(feed)

    play.acting_rank = OTHER
    feed.seek(OTHER, 0)

    assert (next(feed), play.spoiled) == (7, "")
