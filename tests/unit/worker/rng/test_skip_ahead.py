"""Streams skipped ahead, against what torch really draws."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch

from recoverrun.worker.rng import skip_ahead as skip_ahead_module
from recoverrun.worker.rng.skip_ahead import _skip_philox, draws_between, skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams, tensor_bytes


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = read_streams()
    yield
    restore_streams(before)


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


def _other(seed: int) -> Streams:
    """A stream as another rank might have it: somewhere in the middle of its words."""
    present = read_streams()
    torch.manual_seed(seed)
    torch.rand(seed % 700)
    other = read_streams()
    restore_streams(present)
    return other


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("seed", range(4))
def test_another_rank_is_where_the_same_draws_would_have_brought_it(kind: str, seed: int) -> None:
    chosen = random.Random(f"{kind} {seed}")
    counts = [chosen.choice((1, 3, 17, 624, 625, chosen.randrange(1, 5000))) for _ in range(3)]
    torch.manual_seed(seed)
    before, other = read_streams(), _other(seed + 100)
    for count in counts:
        DRAWS[kind](count)
    after = read_streams()
    restore_streams(other)
    for count in counts:
        DRAWS[kind](count)
    expected = torch.get_rng_state()

    moved = skip_ahead(other, before, after)

    assert moved is not None
    assert moved.torch_cpu == tensor_bytes(expected)


def test_no_draws_are_no_jump() -> None:
    streams = read_streams()

    assert skip_ahead(_other(5), streams, streams) == _other(5)


def test_single_normal_numbers_cannot_be_counted() -> None:
    torch.manual_seed(3)
    before = read_streams()
    torch.randn(1)  # drawn in pairs, the second is kept

    assert skip_ahead(before, before, read_streams()) is None


def test_the_dropout_of_two_steps_is_counted() -> None:
    torch.manual_seed(3)
    before = read_streams()
    torch.nn.functional.dropout(torch.ones(6_200_000), 0.1)

    assert draws_between(before.torch_cpu, read_streams().torch_cpu) == 12_400_000


def test_the_past_cannot_be_jumped_to() -> None:
    torch.manual_seed(3)
    before = read_streams()
    torch.rand(10)

    assert draws_between(read_streams().torch_cpu, before.torch_cpu) is None


@pytest.mark.parametrize("seed", [77, 78])
def test_seeding_anew_is_no_jump(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skip_ahead_module, "MAX_DRAWS", 1 << 14)
    torch.manual_seed(78)
    torch.rand(9)
    before = read_streams()
    torch.manual_seed(seed)

    assert skip_ahead(before, before, read_streams()) is None


def test_streams_of_python_and_numpy_are_not_jumped() -> None:
    before = read_streams()
    random.random()

    assert skip_ahead(before, before, read_streams()) is None


def test_a_counter_of_cuda_moves_by_as_much_as_ours() -> None:
    def state(seed: int, offset: int) -> bytes:
        return seed.to_bytes(8, "little") + offset.to_bytes(8, "little")

    assert _skip_philox(state(7, 40), state(9, 8), state(9, 20)) == state(7, 52)
