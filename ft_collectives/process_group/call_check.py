"""The check that all members make the same call, before any data is sent.

gloo does not check: where sizes differ it ends the process (`op.preamble.length <= op.nbytes`) or
waits for ever, and where types differ it adds what the bytes happen to mean. So every collective
begins with an exchange of call signatures, and members whose signatures differ all raise the same
sentence. torch has such a check for debugging (`ProcessGroupWrapper`, by TORCH_DISTRIBUTED_DEBUG=
DETAIL), which needs a monitored barrier and waits for its time-out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ft_collectives.communicators.c10d import ReduceOp
from rendezvous.protocol.rank_differences import by_answer

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
"""How many numbers a signature has."""

NONE = -1
"""Stands for what a call does not have."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The values that must be equal on all members. `count` is the elements of all tensors
    together.
    """

    call: str
    dtype: torch.dtype | None = None
    count: int = NONE
    root: int = NONE
    operation: object = None

    def row(self) -> list[int]:
        """Return it as numbers, which are comparable between processes of one version of torch."""
        dtype = NONE if self.dtype is None else DTYPES.index(self.dtype)
        return [CALLS.index(self.call), dtype, self.count, self.root, _number(self.operation)]


def signature_of(
    call: str, tensors: Sequence[torch.Tensor], root: int = NONE, operation: object = None
) -> CallSignature:
    """Return the signature of a call on `tensors`, which are of one type, as gloo insists."""
    count = sum(tensor.numel() for tensor in tensors)
    return CallSignature(call, tensors[0].dtype if tensors else None, count, root, operation)


def disagreement(rows: Sequence[Sequence[int]], members: Sequence[int]) -> str:
    """Return a sentence that names each call and its ranks, or "" if all rows are equal.

    `rows` are the members' signatures, in the order of `members` (global ranks).
    """
    if all(row == rows[0] for row in rows):
        return ""
    said = by_answer({rank: words_of(row) for rank, row in zip(members, rows, strict=True)})
    return f"ranks of one group make different calls, so none of them is carried out: {said}"


def words_of(row: Sequence[int]) -> str:
    """Return a row as people read it."""
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
