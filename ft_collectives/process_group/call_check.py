"""Whether all members make one and the same call: asked before any data is sent.

gloo takes what it is given: where sizes differ it ends the process (`op.preamble.length <=
op.nbytes`) or waits for ever, and where types differ it adds what the bytes happen to mean. So
every collective of a script begins with a row of numbers from everyone to everyone, and members
that do not agree all raise the same sentence (compare torch's TORCH_DISTRIBUTED_DEBUG=DETAIL, which
compares by a monitored barrier with a time-out).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ft_collectives.communicators.c10d import ReduceOp
from rendezvous.transport.apart import told_apart

CALLS = (
    "all_reduce",
    "reduce",
    "barrier",
    "reduce_scatter",
    "all_gather",
    "gather",
    "all_to_all",
    "broadcast",
    "scatter",
)

DTYPES = tuple(
    sorted((one for one in vars(torch).values() if isinstance(one, torch.dtype)), key=str)
)

OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

ROW = 5
"""The numbers of a row."""

NONE = -1
"""Stands for what a call does not have; calls need not agree in it."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """What one member wants done. `count` is of all elements, over all tensors of the call."""

    call: str
    dtype: torch.dtype | None = None
    count: int = NONE
    root: int = NONE
    operation: object = None

    def row(self) -> list[int]:
        """As numbers that can be compared across processes of one version of torch."""
        dtype = NONE if self.dtype is None else DTYPES.index(self.dtype)
        return [CALLS.index(self.call), dtype, self.count, self.root, _number(self.operation)]


def signature_of(
    call: str, tensors: Sequence[torch.Tensor], root: int = NONE, operation: object = None
) -> CallSignature:
    """A call on `tensors`, which are of one type, as gloo insists."""
    count = sum(tensor.numel() for tensor in tensors)
    return CallSignature(call, tensors[0].dtype if tensors else None, count, root, operation)


def disagreement(rows: Sequence[Sequence[int]], members: Sequence[int]) -> str:
    """One sentence that says who wants what, or "" if all want the same."""
    if all(row == rows[0] for row in rows):
        return ""
    said = told_apart({rank: _words(row) for rank, row in zip(members, rows, strict=True)})
    return f"ranks of one group make different calls, so none of them is carried out: {said}"


def _words(row: Sequence[int]) -> str:
    call, dtype, count, root, operation = row
    words = f"dist.{CALLS[call]}"
    if count != NONE:
        words += f" of {count} element{'s' if count != 1 else ''}"
    if dtype != NONE:
        words += f" of {DTYPES[dtype]}"
    if operation != NONE:
        words += f" by {OPERATIONS[operation]}"
    return words + (f" with root {root}" if root != NONE else "")


def _number(operation: object) -> int:
    names = (at for at, name in enumerate(OPERATIONS) if operation == getattr(ReduceOp, name))
    return NONE if operation is None else next(names, NONE)
