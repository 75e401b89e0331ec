"""Digests by which a microbatch is known again: of what enters the model, and of its loss."""

from typing import Any

import pytest
import torch

from recoverrun.worker.context.evidence import (
    WHOLE_BYTES,
    IterationEvidence,
    crc_of,
    crc_of_gradient,
    crc_of_streams,
    digest_of_inputs,
    digest_of_losses,
)
from recoverrun.worker.rng.streams import read_streams

pytestmark = pytest.mark.usefixtures("streams_put_back")


def inputs(*values: Any) -> int:
    return digest_of_inputs(values)


def entered(*digests: int) -> IterationEvidence:
    """Let inputs with these digests enter the model, one forward after the other."""
    evidence = IterationEvidence()
    for digest in digests:
        evidence.enters(digest, None)
    return evidence


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


def test_the_order_of_inputs_counts() -> None:
    assert inputs(1, 2) != inputs(2, 1)


def test_how_a_tensor_lies_in_memory_is_no_matter() -> None:
    values = torch.arange(12.0).view(3, 4)
    turned = values.t().contiguous().t()
    assert not turned.is_contiguous()

    assert inputs(turned) == inputs(values)
    assert inputs(torch.randn(2, dtype=torch.complex64).conj()) != 0


def test_a_tensor_of_whatever_kind_counts_by_its_content() -> None:
    """Plain ones are looked at more quickly than others."""
    values = torch.arange(12.0).view(3, 4)
    turned = torch.nn.Parameter(values.t().contiguous()).t()

    assert inputs(torch.nn.Parameter(values)) == inputs(values) == inputs(turned)


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
    assert inputs(object()) == inputs(object()) != inputs(IterationEvidence())
    assert inputs(torch.eye(2).to_sparse()) != inputs(torch.eye(3).to_sparse())
    assert inputs("\udc80") != 0, "it cannot be encoded"


# --------------------------------------------------------------------------- losses


def test_a_loss_counts_by_its_bits() -> None:
    value = torch.tensor(0.1, requires_grad=True)
    digest = digest_of_losses(value)

    assert digest_of_losses(value.detach().clone()) == digest
    assert digest_of_losses(value + 1e-7) != digest
    assert digest_of_losses([value, value * 2]) == digest_of_losses((value, value * 2)) != digest


@pytest.mark.parametrize("nothing", [None, (), [None], torch.empty(1, device="meta")])
def test_where_there_is_no_loss_in_memory_there_is_no_digest(nothing: Any) -> None:
    assert digest_of_losses(nothing) == 0


# --------------------------------------------------------------------------- of an iteration


def test_the_order_of_forwards_counts() -> None:
    assert entered(1, 2).entered == [entered(1).inputs, entered(1, 2).inputs]
    assert entered(1, 2).inputs != entered(2, 1).inputs


def test_something_has_entered_even_if_it_was_nothing() -> None:
    """0 says that no forward began."""
    assert IterationEvidence().mark == (0, 0)
    assert entered(0).inputs != 0


def test_a_loss_is_that_of_the_last_microbatch() -> None:
    """Several may lie in one iteration, and what entered in all of them counts."""
    evidence = entered(1)
    evidence.ends(7)
    first = evidence.mark
    evidence.enters(2, None)
    between = evidence.mark
    evidence.ends(8)

    assert (first, between) == ((entered(1).inputs, 7), (entered(1, 2).inputs, 0))
    assert evidence.mark == (entered(1, 2).inputs, 8)


@pytest.mark.parametrize("backward", [lambda one: one.ends(9), lambda one: one.passes()])
def test_the_latest_inputs_are_those_since_the_last_backward(backward: Any) -> None:
    """Whatever came before them: two ranks with the same batch now had others before."""
    first, second, alone = IterationEvidence(), IterationEvidence(), IterationEvidence()
    for evidence, before in ((first, 1), (second, 2)):
        evidence.enters(before, None)
        backward(evidence)
        assert evidence.latest, "until something enters"
        evidence.enters(7, None)
        evidence.enters(8, None)
    for digest in (7, 8):
        alone.enters(digest, None)

    assert first.latest == second.latest == alone.latest
    assert first.inputs != second.inputs


def test_the_door_is_the_first_forward_and_where_the_streams_stood_there() -> None:
    evidence, streams = IterationEvidence(), read_streams()
    evidence.enters(1, streams)
    door = evidence.door
    torch.rand(1)
    moved = IterationEvidence()
    moved.enters(1, read_streams())

    late = IterationEvidence()
    late.enters(1, streams)
    late.enters(2, None)
    evidence.enters(2, read_streams())

    assert late.door == door, "asked for after what entered next, and other numbers were drawn"
    assert evidence.door == door == crc_of_streams(streams, entered(1).inputs)
    assert 0 != moved.door != door
    assert entered(1).door == 0, "the streams were not read"


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
    streams = read_streams()
    digest = crc_of_streams(streams)
    assert crc_of_streams(read_streams()) == digest

    torch.rand(1)
    assert crc_of_streams(read_streams()) != digest
    assert crc_of_streams(streams.hosted({"python": b"other"})) != digest
    assert crc_of_streams(streams.hosted({"numpy": b"other"})) != digest
    assert crc_of_streams(streams, 5) != digest
