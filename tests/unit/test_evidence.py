"""Digests by which a microbatch is known again: of what enters the model, and of its loss."""

from typing import Any

import pytest
import torch

from recoverrun.hooks import rng
from recoverrun.hooks.evidence import (
    WHOLE_BYTES,
    Evidence,
    crc_of,
    crc_of_gradient,
    crc_of_streams,
)

pytestmark = pytest.mark.usefixtures("streams_put_back")


def inputs(*values: Any) -> int:
    evidence = Evidence()
    evidence.begin()
    evidence.enters(values)
    return evidence.inputs


def loss(value: Any) -> int:
    evidence = Evidence()
    evidence.ends(value)
    return evidence.loss


# --------------------------------------------------------------------------- inputs

DIFFERENT: list[tuple[Any, Any]] = [
    (torch.tensor([1.0]), torch.tensor([2.0])),
    (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
    (torch.ones(2, 3), torch.ones(3, 2)),
    (torch.tensor([0.0]), torch.tensor([-0.0])),
    ({"ids": torch.tensor([1])}, {"ids": torch.tensor([2])}),
    ({"ids": 1}, {"mask": 1}),
    ([1, [2, (3,)]], [1, [2, (4,)]]),
    ([1], (1,)),
    (1, 1.0),
    ("a", b"a"),
    (None, False),
    (torch.eye(4).t(), torch.arange(16.0).view(4, 4).t()),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_inputs_have_another_digest(one: Any, other: Any) -> None:
    assert inputs(one) == inputs(one)
    assert inputs(one) != inputs(other)


def test_the_order_of_inputs_and_of_forwards_counts() -> None:
    evidence = Evidence()
    for value in (1, 2):
        evidence.enters([value])

    assert evidence.inputs == inputs(1, 2) != inputs(2, 1)
    assert evidence.entered == [inputs(1), inputs(1, 2)]


def test_how_a_tensor_lies_in_memory_is_no_matter() -> None:
    values = torch.arange(12.0).view(3, 4)
    turned = values.t().contiguous().t()
    assert not turned.is_contiguous()

    assert inputs(turned) == inputs(values)
    assert inputs(torch.randn(2, dtype=torch.complex64).conj()) != 0


def test_a_large_tensor_is_sampled_from_its_beginning_to_its_end() -> None:
    large = torch.zeros(4 * WHOLE_BYTES, dtype=torch.uint8)
    digest = inputs(large)

    for place in (0, len(large) // 2 - 16, len(large) - 1):
        changed = large.clone()
        changed[max(0, place - WHOLE_BYTES // 16) : place + 1] = 1
        assert inputs(changed) != digest, place


@pytest.mark.parametrize("size", [0, 1, WHOLE_BYTES - 1, WHOLE_BYTES, WHOLE_BYTES + 1])
def test_any_size_has_a_digest(size: int) -> None:
    values = torch.arange(size, dtype=torch.int64).to(torch.uint8)

    assert crc_of(values, 7, WHOLE_BYTES) == crc_of(values.clone(), 7, WHOLE_BYTES)
    if size:
        changed = values.clone()
        changed[-1] += 1
        assert crc_of(changed, 7, WHOLE_BYTES) != crc_of(values, 7, WHOLE_BYTES)


def test_nothing_in_an_input_is_looked_at_for_ever() -> None:
    endless: list[Any] = [1]
    endless.append(endless)

    assert inputs(endless) != 0


def test_what_cannot_be_looked_into_counts_by_its_kind() -> None:
    assert inputs(object()) == inputs(object()) != inputs(Evidence())
    assert inputs(torch.eye(2).to_sparse()) != inputs(torch.eye(3).to_sparse())
    assert inputs("\udc80") != 0, "it cannot be encoded"


def test_something_has_entered_even_if_it_was_nothing() -> None:
    """0 says that no forward began."""
    assert Evidence().mark == (0, 0)
    assert inputs() != 0


# --------------------------------------------------------------------------- losses


def test_a_loss_counts_by_its_bits() -> None:
    value = torch.tensor(0.1, requires_grad=True)

    assert loss(value) == loss(value.detach().clone())
    assert loss(value) != loss(value + 1e-7)
    assert loss([value, value * 2]) == loss((value, value * 2)) != loss(value)


@pytest.mark.parametrize("nothing", [None, (), [None], torch.empty(1, device="meta")])
def test_where_there_is_no_loss_in_memory_there_is_no_digest(nothing: Any) -> None:
    assert loss(nothing) == 0


def test_a_new_microbatch_begins_with_nothing() -> None:
    evidence = Evidence()
    evidence.enters([1])
    evidence.ends(torch.ones(1))
    evidence.door = 3

    evidence.begin()

    assert (evidence.mark, evidence.door, evidence.entered) == ((0, 0), 0, [])


def test_what_is_known_of_one_s_own_microbatch_survives_another_s() -> None:
    evidence = Evidence()
    evidence.enters([1])
    evidence.ends(torch.ones(1))
    evidence.door = 3
    before = (evidence.mark, evidence.door, list(evidence.entered))
    kept = evidence.kept()
    evidence.begin()
    evidence.enters([2])

    evidence.put_back(kept)

    assert (evidence.mark, evidence.door, evidence.entered) == before


# --------------------------------------------------------------------------- gradients, streams


def gradient(*values: float, place: int = 0) -> int:
    return crc_of_gradient(place, torch.tensor(values), torch.zeros(len(values)))


def test_a_gradient_counts_whole_and_at_its_place() -> None:
    assert gradient(1.0, 2.0) == gradient(1.0, 2.0) != gradient(2.0, 1.0)
    assert gradient(1.0) != gradient(1.0, place=1)
    large = torch.zeros(WHOLE_BYTES)
    one = large.clone()
    one[WHOLE_BYTES // 2 + 1] = 1e-9
    assert crc_of_gradient(0, one, large) != crc_of_gradient(0, large, large)


def test_none_is_as_good_as_zeros() -> None:
    assert crc_of_gradient(2, None, torch.ones(3)) == gradient(0.0, 0.0, 0.0, place=2)


def test_gradients_are_put_together_in_any_order() -> None:
    parts = [gradient(float(n), place=n) for n in range(3)]

    assert parts[0] ^ parts[1] ^ parts[2] == parts[2] ^ parts[0] ^ parts[1]
    assert gradient(1.0, place=0) ^ gradient(2.0, place=1) != (
        gradient(2.0, place=0) ^ gradient(1.0, place=1)
    )


def test_every_stream_counts() -> None:
    streams = rng.read()
    digest = crc_of_streams(streams)
    assert crc_of_streams(rng.read()) == digest

    torch.rand(1)
    assert crc_of_streams(rng.read()) != digest
    assert crc_of_streams(streams.hosted({"python": b"other"})) != digest
    assert crc_of_streams(streams.hosted({"numpy": b"other"})) != digest
    assert crc_of_streams(streams, 5) != digest
