"""Random streams: as values, and jumped ahead against what torch really draws."""

import array
import random
from collections.abc import Callable, Iterator

import msgpack
import numpy
import pytest
import torch

from recoverrun.worker.rng import rng


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = rng.read()
    yield
    rng.restore(before)


def drawn() -> list[float]:
    return [*torch.rand(3).tolist(), *torch.randn(3).tolist(), random.random(), random.gauss(0, 1)]


# --------------------------------------------------------------------------- values


def test_what_followed_a_reading_follows_again() -> None:
    streams = rng.read()
    first = drawn()
    torch.manual_seed(1)
    random.seed(1)

    rng.restore(streams)

    assert drawn() == first


def test_streams_go_through_msgpack() -> None:
    random.gauss(0, 1)  # leaves one that is cached
    streams = rng.read()

    packed = msgpack.packb(streams.pack())

    assert rng.Streams.unpack(msgpack.unpackb(packed)) == streams


def test_numpy_is_read_and_restored_where_it_is_there() -> None:
    numpy = pytest.importorskip("numpy")
    numpy.random.normal()  # leaves one that is cached
    streams = rng.read()
    first = [numpy.random.normal() for _ in range(4)]

    rng.restore(streams)

    assert [numpy.random.normal() for _ in range(4)] == first


def test_a_gaussian_that_python_keeps_for_later_is_part_of_its_stream() -> None:
    random.gauss(0, 1)
    streams = rng.read()
    first = random.gauss(0, 1)

    rng.restore(streams)

    assert random.gauss(0, 1) == first


@pytest.mark.parametrize(
    "packed",
    [
        None,
        [],
        [b"", [], b"", b""],
        [b"x" * rng.CPU_BYTES, [], b"y", b""],
        [b"x" * rng.CPU_BYTES, [], b"y" * 2500, b"z"],
        [b"x" * rng.CPU_BYTES, [1], b"y" * 2500, b""],
        ["x" * rng.CPU_BYTES, [], b"y" * 2500, b""],
    ],
)
def test_what_is_no_streams_is_refused(packed: object) -> None:
    with pytest.raises(ValueError, match="random streams"):
        rng.Streams.unpack(packed)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- jumping

DRAWS: dict[str, Callable[[int], object]] = {
    "dropout": lambda n: torch.nn.functional.dropout(torch.ones(n), 0.3),
    "rand": torch.rand,
    "rand double": lambda n: torch.rand(n, dtype=torch.float64),
    "randint": lambda n: torch.randint(0, 1000, (n,)),
    "randint wide": lambda n: torch.randint(0, 1 << 40, (n,)),
    "randn": lambda n: torch.randn(max(n, 16)),
    "normal": lambda n: torch.empty(max(n, 16)).normal_(1.0, 2.0),
    "bernoulli": lambda n: torch.bernoulli(torch.full((n,), 0.4)),
    "multinomial": lambda n: torch.multinomial(torch.rand(max(n, 2)), 1 + n // 3, True),
    "randperm": torch.randperm,
    "exponential": lambda n: torch.empty(n).exponential_(),
}


def _other(seed: int) -> rng.Streams:
    """Where another rank might stand: somewhere in the middle of its words."""
    present = rng.read()
    torch.manual_seed(seed)
    torch.rand(seed % 700)
    other = rng.read()
    rng.restore(present)
    return other


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("seed", range(4))
def test_another_rank_is_where_the_same_draws_would_have_brought_it(kind: str, seed: int) -> None:
    chosen = random.Random(f"{kind} {seed}")
    counts = [chosen.choice((1, 3, 17, 624, 625, chosen.randrange(1, 5000))) for _ in range(3)]
    torch.manual_seed(seed)
    before, other = rng.read(), _other(seed + 100)
    for count in counts:
        DRAWS[kind](count)
    after = rng.read()
    rng.restore(other)
    for count in counts:
        DRAWS[kind](count)
    expected = torch.get_rng_state()

    moved = rng.jump(other, before, after)

    assert moved is not None
    assert moved.torch_cpu == rng.tensor_bytes(expected)


def test_no_draws_are_no_jump() -> None:
    streams = rng.read()

    assert rng.jump(_other(5), streams, streams) == _other(5)


def test_single_normal_numbers_cannot_be_counted() -> None:
    torch.manual_seed(3)
    before = rng.read()
    torch.randn(1)  # drawn in pairs, the second is kept

    assert rng.jump(before, before, rng.read()) is None


def test_the_dropout_of_two_steps_is_counted() -> None:
    torch.manual_seed(3)
    before = rng.read()
    torch.nn.functional.dropout(torch.ones(6_200_000), 0.1)

    assert rng.draws_between(before.torch_cpu, rng.read().torch_cpu) == 12_400_000


def test_the_past_cannot_be_jumped_to() -> None:
    torch.manual_seed(3)
    before = rng.read()
    torch.rand(10)

    assert rng.draws_between(rng.read().torch_cpu, before.torch_cpu) is None


@pytest.mark.parametrize("seed", [77, 78])
def test_seeding_anew_is_no_jump(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "MAX_DRAWS", 1 << 14)
    torch.manual_seed(78)
    torch.rand(9)
    before = rng.read()
    torch.manual_seed(seed)

    assert rng.jump(before, before, rng.read()) is None


def test_streams_of_python_and_numpy_are_not_jumped() -> None:
    before = rng.read()
    random.random()

    assert rng.jump(before, before, rng.read()) is None


def test_a_counter_of_cuda_moves_by_as_much_as_ours() -> None:
    def state(seed: int, offset: int) -> bytes:
        return seed.to_bytes(8, "little") + offset.to_bytes(8, "little")

    assert rng._philox_jump(state(7, 40), state(9, 8), state(9, 20)) == state(7, 52)


def test_a_generator_that_numpy_is_given_is_read_from_then_on() -> None:
    before, own = rng.read(), numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.MT19937(5))
    try:
        given = rng.read().numpy
        expected = numpy.random.get_state()[1].tobytes()
    finally:
        numpy.random.set_bit_generator(own)

    assert given[24:] == expected
    assert rng.read().numpy == before.numpy


def test_no_move_of_a_generator_is_missed() -> None:
    """`read` looks at memory first; what it says must be what the generators themselves say."""
    chance = random.Random(11)
    kept = [rng.read()]

    moves = [
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.seed(chance.random()),
        numpy.random.rand,
        numpy.random.randn,
        lambda: numpy.random.rand(624),
        lambda: numpy.random.seed(chance.randrange(1000)),
        lambda: kept.append(rng.read()),
        lambda: rng.restore(chance.choice(kept)),
        lambda: None,
    ]
    for _ in range(4000):
        chance.choice(moves)()
        seen = rng.read()
        _, keys, position, has_gauss, gauss = numpy.random.get_state()

        assert seen.python == rng.pack_python(random.getstate())
        assert seen.numpy[:16] == array.array("q", [position, has_gauss]).tobytes()
        assert seen.numpy[16:24] == array.array("d", [gauss]).tobytes()
        assert seen.numpy[24:] == keys.tobytes()
