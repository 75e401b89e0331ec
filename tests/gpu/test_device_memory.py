"""Digests and transfers of tensors on a device, by way of the host's memory."""

import pytest
import torch

from ft_collectives.process_group.two_phase import digest
from recoverrun.worker.arrival.packing import pack, unpack
from recoverrun.worker.arrival.tensor_memory import Departures, fill
from recoverrun.worker.context.evidence import (
    crc_of_gradient,
    crc_of_named,
    digest_of_inputs,
    digest_of_losses,
)
from recoverrun.worker.step.parameter_checksum import checksum, sample

pytestmark = pytest.mark.gpu


@pytest.fixture
def here() -> torch.Tensor:
    return torch.linspace(-1, 1, 3000, dtype=torch.float64).view(30, 100)


@pytest.fixture
def there(here: torch.Tensor) -> torch.Tensor:
    return here.to("cuda")


def test_a_gradient_has_the_digest_of_its_copy(here: torch.Tensor, there: torch.Tensor) -> None:
    assert crc_of_gradient(3, there, there) == crc_of_gradient(3, here, here)
    assert crc_of_gradient(3, None, there) == crc_of_gradient(3, None, here)
    assert crc_of_gradient(3, there.t(), there.t()) == crc_of_gradient(3, here.t(), here.t())
    assert crc_of_named("w", there, torch.float32) == crc_of_named("w", here, torch.float32)


def test_parameters_have_the_checksum_of_their_copy(
    here: torch.Tensor, there: torch.Tensor
) -> None:
    assert checksum({"w": there}) == checksum({"w": here})
    assert digest([there, there.t()]) == digest([here, here.t()])


def test_what_would_wait_for_the_device_is_left_out(there: torch.Tensor) -> None:
    assert sample([there]) == 0
    assert digest_of_losses(there.sum()) == 0
    assert digest_of_inputs([there]) == digest_of_inputs([there + 1])


@pytest.mark.parametrize("turned", [False, True])
def test_a_tensor_is_sent_through_a_pinned_buffer(
    here: torch.Tensor, there: torch.Tensor, turned: bool
) -> None:
    sent = there.t() if turned else there
    received = torch.zeros_like(sent)
    parts = b"".join(bytes(part) for part in Departures([sent]).parts(sent))
    assert len(parts) == sent.nbytes
    at = 0

    def receive(part: memoryview) -> None:
        nonlocal at
        part[:] = parts[at : at + len(part)]
        at += len(part)

    fill(received, receive, most=4096)

    assert at == len(parts)
    assert torch.equal(received.cpu(), here.t() if turned else here)


def test_what_lay_on_a_device_is_unpacked_onto_one(here: torch.Tensor, there: torch.Tensor) -> None:
    tensors: list[torch.Tensor] = []
    plain = pack([there, {"again": there}, here], tensors)
    sent = [one.cpu() for one in tensors]

    first, held, third = unpack(plain, sent)

    assert first.is_cuda and held["again"] is first and third.is_cpu
    assert torch.equal(first.cpu(), here)
    assert all(one.is_cpu for one in unpack([plain], sent, moved=False)[0][::2])
