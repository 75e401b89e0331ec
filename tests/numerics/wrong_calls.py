"""Calls that differ between ranks, or that no rank makes right (see `worlds`)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from tests.numerics.worlds import Member


def unlike(member: Member) -> list[str]:
    """The error where rank 1 makes another call than ranks 0 and 2, and then one they agree on."""
    member.protect()
    odd = member.rank == 1
    ones = torch.ones(3)

    def whole(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(count, dtype=dtype)

    said = []
    for call in (
        lambda: dist.all_reduce(whole(4 if odd else 3)),
        lambda: dist.all_reduce(whole(3, torch.float64 if odd else torch.float32)),
        lambda: dist.all_reduce(ones.clone(), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM),
        lambda: dist.barrier() if odd else dist.all_reduce(ones.clone()),
        lambda: dist.broadcast(ones.clone(), src=1 if odd else 0),
    ):
        try:
            call()
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    dist.all_reduce(ones)
    return [*said, str(ones.tolist())]


def zeros(count: int, size: int = 2, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.zeros(size, dtype=dtype) for _ in range(count)]


def exchanged(
    out: torch.Tensor, rows: int, out_rows: list[int] | None, in_rows: list[int] | None
) -> torch.Tensor:
    """An all_to_all_single of `rows` times three numbers, of the type of `out`."""
    source = torch.arange(3.0 * rows).to(out.dtype).view(rows, 3)
    dist.all_to_all_single(out, source, out_rows, in_rows)
    return out


TWO = torch.ones(2)
DOUBLES = torch.float64

WRONG: dict[str, Callable[[], Any]] = {
    "broadcast from 9": lambda: dist.broadcast(TWO.clone(), 9),
    "broadcast from -1": lambda: dist.broadcast(TWO.clone(), -1),
    "broadcast from place 9": lambda: dist.broadcast(TWO.clone(), group_src=9),
    "reduce to 9": lambda: dist.reduce(TWO.clone(), 9),
    "gather to 9": lambda: dist.gather(TWO, None, 9),
    "scatter from 9": lambda: dist.scatter(TWO.clone(), None, 9),
    "all_gather, too few": lambda: dist.all_gather(zeros(2), TWO),
    "all_gather, too many": lambda: dist.all_gather(zeros(4), TWO),
    "all_gather, another shape": lambda: dist.all_gather(zeros(3, 3), TWO),
    "all_gather, one other shape": lambda: dist.all_gather([*zeros(2), torch.ones(5)], TWO),
    "all_gather, another type": lambda: dist.all_gather(zeros(3, 2, DOUBLES), TWO),
    "all_gather_single, too small": lambda: dist.all_gather_single(torch.zeros(4), TWO),
    "all_gather_single, too large": lambda: dist.all_gather_single(torch.zeros(7), TWO),
    "all_gather_single, another type": lambda: dist.all_gather_single(
        torch.zeros(6, dtype=DOUBLES), TWO
    ),
    "reduce_scatter, too few": lambda: dist.reduce_scatter(TWO.clone(), zeros(2)),
    "reduce_scatter, too many": lambda: dist.reduce_scatter(TWO.clone(), zeros(4)),
    "reduce_scatter, another shape": lambda: dist.reduce_scatter(TWO.clone(), zeros(3, 3)),
    "reduce_scatter, another type": lambda: dist.reduce_scatter(TWO.clone(), zeros(3, 2, DOUBLES)),
    "reduce_scatter_single, too small": lambda: dist.reduce_scatter_single(
        TWO.clone(), torch.ones(4)
    ),
    "reduce_scatter_single, another type": lambda: dist.reduce_scatter_single(
        TWO.clone(), torch.ones(6, dtype=DOUBLES)
    ),
    "all_to_all, too few out": lambda: dist.all_to_all(zeros(2), zeros(3)),
    "all_to_all, too few in": lambda: dist.all_to_all(zeros(3), zeros(2)),
    "all_to_all, too few": lambda: dist.all_to_all(zeros(2), zeros(2)),
    "all_to_all, another type": lambda: dist.all_to_all(zeros(3, 2, DOUBLES), zeros(3)),
    "all_to_all_single, out splits": lambda: exchanged(torch.zeros(6, 3), 6, [2, 2, 1], [2, 2, 2]),
    "all_to_all_single, in splits": lambda: exchanged(torch.zeros(6, 3), 6, [2, 2, 2], [2, 2, 1]),
    "all_to_all_single, out count": lambda: exchanged(torch.zeros(6, 3), 6, [3, 3], [2, 2, 2]),
    "all_to_all_single, in count": lambda: exchanged(torch.zeros(6, 3), 6, [2, 2, 2], [3, 3]),
    "all_to_all_single, out only": lambda: exchanged(torch.zeros(7, 3), 7, [3, 3, 1], None),
    "all_to_all_single, bytes": lambda: exchanged(torch.zeros(4, 3, dtype=DOUBLES), 4, None, None),
    "all_to_all_single, one row": lambda: exchanged(
        torch.zeros(1, 3, dtype=torch.complex64), 1, None, None
    ),
    "all_to_all_single, uneven": lambda: dist.all_to_all_single(TWO.clone(), TWO),
    "all_to_all_single, sizes": lambda: dist.all_to_all_single(torch.zeros(3), torch.ones(6)),
    "all_reduce, integers by AVG": lambda: dist.all_reduce(
        torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG
    ),
    "all_reduce, floats by BAND": lambda: dist.all_reduce(TWO.clone(), dist.ReduceOp.BAND),
    "all_reduce, floats by BXOR": lambda: dist.all_reduce(TWO.clone(), dist.ReduceOp.BXOR),
}
"""Calls of a group of three. Some are right: gloo exchanges bytes, whatever they mean."""


def wrong(member: Member) -> dict[str, tuple[str, str, str]]:
    """The error or result of each call: natively, protected, and in a group that is made late."""
    native = {name: outcome(call) for name, call in WRONG.items()}
    member.protect()
    protected = {name: outcome(call) for name, call in WRONG.items()}
    c10d.GroupMember.WORLD = dist.new_group(list(range(member.size)))
    late = {name: outcome(call) for name, call in WRONG.items()}
    return {name: (native[name], protected[name], late[name]) for name in WRONG}


def outcome(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except (RuntimeError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


def to_nobody(member: Member) -> list[str]:
    """Messages with a rank that was never there."""
    member.protect()
    return [outcome(lambda: dist.send(TWO, 9)), outcome(lambda: dist.recv(TWO.clone(), 9))]


def too_few_slots(member: Member) -> str:
    """A gather whose root has no slot for one of the ranks."""
    member.protect()
    return outcome(lambda: dist.gather(TWO, zeros(2) if member.rank == 0 else None, 0))
