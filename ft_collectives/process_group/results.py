"""The finishing of a collective's result, and its way into the script's tensors.

Where members are lost, a result is over the survivors, with what is known of the others
(`Communicator.whole`). A script that divides a sum by the group's size has to get a mean: so a sum
of floating point numbers is scaled to the original size. A sum of integers is scaled only if
several members gave the same (the size of a batch, say); other integers count the survivors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ft_collectives.communicators.c10d import ReduceOp, Work, work_of
from ft_collectives.communicators.channel import Communicator
from ft_collectives.communicators.tensor_bits import bits_of
from ft_collectives.process_group.two_phase import Fold

FOLDS: tuple[tuple[Any, Any], ...] = (
    (ReduceOp.SUM, torch.add),
    (ReduceOp.AVG, torch.add),
    (ReduceOp.MIN, torch.minimum),
    (ReduceOp.MAX, torch.maximum),
)

Give = Callable[[list[torch.Tensor]], None]
"""Takes one tensor for each rank of the original group, in the order of ranks."""


def fold_by(op: Any) -> Fold | None:
    """Return what adds another member's inputs to a reduction by `op`; None if nothing does."""
    by = next((by for one, by in FOLDS if op == one), None)
    if by is None:
        return None

    def fold(staged: list[torch.Tensor], more: Sequence[torch.Tensor]) -> None:
        for mine, theirs in zip(staged, more, strict=True):
            by(mine, theirs.to(mine).view(mine.shape), out=mine)

    return fold


def finish(result: torch.Tensor, op: Any, among: Communicator, of: int) -> None:
    """Finish `result`, reduced by `op` over `among`, for a group `of` so many ranks. In place.

    AVG divides by the number of members (gloo reduces it as a SUM); raises RuntimeError for
    integers, as torch does. SUM is scaled where members are lost.
    """
    size = of if among.whole else len(among.members)
    if op == ReduceOp.AVG:
        result.div_(size)  # raises for integers, as gloo does
    elif op == ReduceOp.SUM and size != of:
        if result.is_floating_point() or result.is_complex():
            result.mul_(of / size)
        elif among.same_inputs:
            result.copy_(result // size * of)


def put(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy `value` to `target`, which has as many elements."""
    target.detach().copy_(value.reshape(target.shape))


def put_first(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy `values` (one dimension) to the first elements of `target`, and leave the others."""
    flat = target.detach().clone(memory_format=torch.contiguous_format).view(-1)
    flat.view(values.dtype)[: values.numel()] = values
    put(target, flat)


def split_for_ranks(
    tensor: torch.Tensor, rows: Sequence[int], ranks: int
) -> tuple[torch.Tensor, ...]:
    """Split `tensor` for all ranks: `rows` rows for each, or equally many if `rows` is empty.

    Rows that do not divide equally are split as bytes, as gloo does it.
    """
    whole, each = tensor.detach(), tensor.shape[0] // ranks
    if not rows and each * ranks != tensor.shape[0]:
        whole = bits_of(whole)
        each = whole.numel() // ranks
    parts: tuple[torch.Tensor, ...] = whole.split(list(rows) or [each] * ranks)
    return parts


def writer_to(slots: Sequence[torch.Tensor]) -> Give:
    """Return what writes the gathered tensors to `slots`."""

    def give(parts: list[torch.Tensor]) -> None:
        for slot, part in zip(slots, parts, strict=True):
            put(slot, part)

    return give


def completed(outputs: Any) -> Work:
    """Return a c10d work that is complete; its future holds the outputs, as gloo's does."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(outputs)
    return work_of(future)
