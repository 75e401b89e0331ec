"""Generators of the script that are read ahead, for other data in a lost rank's place."""

import itertools
from collections.abc import Generator, Iterator

import pytest

from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.generator_wrapper import Anew
from tests.unit.worker.data.test_generator_source import Play


def numbers() -> Generator[int, None, None]:
    yield from range(10)


def sums(items: Iterator[int], size: int) -> Generator[int, None, None]:
    while chunk := list(itertools.islice(items, size)):
        yield sum(chunk)


def batched(play: Play) -> GeneratorSource:
    rows = GeneratorSource(numbers(), "rows", play, 1, numbers)
    return GeneratorSource(sums(rows, 3), "batches", play, 2, Anew(lambda: sums(numbers(), 3)))


@pytest.mark.parametrize("ahead", [0, 1, 3, 20])
def test_a_generator_below_gives_each_item_once_and_ends(ahead: int) -> None:
    play = Play()
    batches = batched(play)
    got = [next(batches)]
    play.acting_rank, play.fresh = 0, True

    others = [next(batches) for _ in range(ahead)]

    play.acting_rank, play.fresh = None, False
    got += itertools.islice(batches, 10)
    assert got == [3, 12, 21, 9]
    assert all(other in got[1:] for other in others)
    assert batches.ended


def test_draws_for_what_is_read_ahead_are_in_no_item_of_the_script() -> None:
    play = Play()
    batches = batched(play)
    next(batches)
    drawn = play.drawn_so_far
    play.acting_rank, play.fresh = 0, True

    next(batches)

    assert play.drawn_so_far == drawn
