"""The streams of Python and numpy: what memory shows is what the generators say."""

import array
import random
from collections.abc import Iterator

import numpy
import pytest

from recoverrun.worker.rng.host_streams import Memo, pack_python, python_bytes
from recoverrun.worker.rng.streams import (
    read_streams,
    restore_streams,
)


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = read_streams()
    yield
    restore_streams(before)


def test_numpy_is_read_and_restored_where_it_is_there() -> None:
    numpy = pytest.importorskip("numpy")
    numpy.random.normal()  # leaves one that is cached
    streams = read_streams()
    first = [numpy.random.normal() for _ in range(4)]

    restore_streams(streams)

    assert [numpy.random.normal() for _ in range(4)] == first


def test_a_gaussian_that_python_keeps_for_later_is_part_of_its_stream() -> None:
    random.gauss(0, 1)
    streams = read_streams()
    first = random.gauss(0, 1)

    restore_streams(streams)

    assert random.gauss(0, 1) == first


def test_a_generator_that_numpy_is_given_is_read_from_then_on() -> None:
    before, own = read_streams(), numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.MT19937(5))
    try:
        given = read_streams().numpy
        expected = numpy.random.get_state()[1].tobytes()
    finally:
        numpy.random.set_bit_generator(own)

    assert given[24:] == expected
    assert read_streams().numpy == before.numpy


def test_a_memo_that_meets_another_generator_tells_of_that_one() -> None:
    memo, one, other = Memo(), random.Random(1), random.Random(2)

    for generator in (one, other, other, one):
        assert python_bytes(generator, memo) == pack_python(generator.getstate())
        generator.random()


def test_no_move_of_a_generator_is_missed() -> None:
    """A reading looks at memory first; what it says must be what the generators themselves say."""
    chance = random.Random(11)
    kept = [read_streams()]

    moves = [
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.seed(chance.random()),
        numpy.random.rand,
        numpy.random.randn,
        lambda: numpy.random.rand(624),
        lambda: numpy.random.seed(chance.randrange(1000)),
        lambda: kept.append(read_streams()),
        lambda: restore_streams(chance.choice(kept)),
        lambda: None,
    ]
    for _ in range(4000):
        chance.choice(moves)()
        seen = read_streams()
        _, keys, position, has_gauss, gauss = numpy.random.get_state()

        assert seen.python == pack_python(random.getstate())
        assert seen.numpy[:16] == array.array("q", [position, has_gauss]).tobytes()
        assert seen.numpy[16:24] == array.array("d", [gauss]).tobytes()
        assert seen.numpy[24:] == keys.tobytes()
