"""What becomes of the members' tensors in a collective, and how the script is given it.

Where members are lost, a result is over those who are left, with what is known of the others
(`Communicator.whole`). What a script divides by the original size stays a mean: a sum of floating
point numbers is scaled, and so is one of integers if several members gave the same, as all then do
(a size of the batch, say). Other integers count those who are left.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ft_collectives.communicators.c10d import ReduceOp, Work, work_of
from ft_collectives.communicators.channel import Communicator
from ft_collectives.process_group.two_phase import Fold

FOLDS: tuple[tuple[Any, Any], ...] = (
    (ReduceOp.SUM, torch.add),
    (ReduceOp.AVG, torch.add),
    (ReduceOp.MIN, torch.minimum),
    (ReduceOp.MAX, torch.maximum),
)

Give = Callable[[list[torch.Tensor]], None]
"""Takes one tensor per rank of the original group, in order."""


def fold_by(op: Any) -> Fold | None:
    """How one more member's inputs are put into a reduction by `op`; None: that is not served."""
    by = next((by for one, by in FOLDS if op == one), None)
    if by is None:
        return None

    def fold(staged: list[torch.Tensor], more: Sequence[torch.Tensor]) -> None:
        for mine, theirs in zip(staged, more, strict=True):
            by(mine, theirs.to(mine).view(mine.shape), out=mine)

    return fold


def finish(result: torch.Tensor, op: Any, among: Communicator, of: int) -> None:
    """Make what was summed by `op` the result of a group `of` so many ranks, in place."""
    size = of if among.whole else len(among.members)
    if op == ReduceOp.AVG:
        result.div_(size)  # raises for integers, as gloo does
    elif op == ReduceOp.SUM and size != of:
        if result.is_floating_point() or result.is_complex():
            result.mul_(of / size)
        elif among.alike:
            result.copy_(result // size * of)


def put(target: torch.Tensor, value: torch.Tensor) -> None:
    target.detach().copy_(value.reshape(target.shape))


def put_first(target: torch.Tensor, values: torch.Tensor) -> None:
    """Into its first elements; what is beyond them is left."""
    flat = target.detach().clone(memory_format=torch.contiguous_format).view(-1)
    flat.view(values.dtype)[: values.numel()] = values
    put(target, flat)


def dealt(tensor: torch.Tensor, rows: Sequence[int], ranks: int) -> tuple[torch.Tensor, ...]:
    """A part for each rank: so many rows, or equally many; where these do not come out even, gloo
    deals out bytes.
    """
    whole, each = tensor.detach(), tensor.shape[0] // ranks
    if not rows and each * ranks != tensor.shape[0]:
        whole = whole.reshape(-1).view(torch.uint8)
        each = whole.numel() // ranks
    parts: tuple[torch.Tensor, ...] = whole.split(list(rows) or [each] * ranks)
    return parts


def giving(slots: Sequence[torch.Tensor]) -> Give:
    def give(parts: list[torch.Tensor]) -> None:
        for slot, part in zip(slots, parts, strict=True):
            put(slot, part)

    return give


def completed(outputs: Any) -> Work:
    """What `async_op=True` returns; its future gives the outputs, as gloo's own does."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(outputs)
    return work_of(future)
