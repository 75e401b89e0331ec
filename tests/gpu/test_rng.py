"""CUDA's random streams as values, against what CUDA really draws."""

import pytest
import torch

from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import read_streams, restore_streams, tensor_bytes

pytestmark = pytest.mark.gpu


def drawn(count: int = 1000) -> torch.Tensor:
    """Of every kind that a model draws, on the device."""
    kinds = torch.rand(count, device="cuda"), torch.randn(count, device="cuda")
    return torch.cat([*kinds, torch.nn.functional.dropout(torch.ones(count, device="cuda"), 0.3)])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.cuda.init()
    torch.manual_seed(11)


def test_a_state_is_a_seed_and_an_offset() -> None:
    """Eight bytes each, which `_skip_philox` takes apart."""
    state = torch.cuda.get_rng_state()
    assert state.numel() == 16
    assert int.from_bytes(tensor_bytes(state)[:8], "little") == 11


def test_what_followed_a_reading_follows_again() -> None:
    streams = read_streams()
    first = drawn()
    torch.manual_seed(5)
    drawn()

    restore_streams(streams)

    assert torch.equal(drawn(), first)


def test_another_slot_s_stream_is_moved_on_by_what_our_own_drew() -> None:
    """Slots are seeded apart and draw equally often: that is what makes up a microbatch."""
    before = read_streams()
    drawn()
    after = read_streams()
    torch.manual_seed(12)
    theirs = read_streams()
    drawn()
    expected = read_streams()

    jumped = skip_ahead(theirs, before, after)

    assert jumped is not None
    assert jumped.torch_cuda == expected.torch_cuda
    restore_streams(jumped)
    moved_on = drawn()
    restore_streams(expected)
    assert torch.equal(drawn(), moved_on)
