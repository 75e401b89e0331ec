"""Calls that differ between ranks, or that no rank makes right (see `worlds`)."""

from typing import Any

import torch
import torch.distributed as dist

from tests.numerics.worlds import Member


def unlike(member: Member) -> list[str]:
    """What is said where rank 1 makes another call than ranks 0 and 2, and a call they agree on."""
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


def wrong(member: Member) -> list[tuple[str, str]]:
    """What is raised or given where no call is right: natively, and protected."""
    two, three = torch.ones(2), torch.ones(3)
    none: Any = None

    def uneven(rows: int, kind: torch.dtype) -> torch.Tensor:
        out = torch.zeros(rows, 3, dtype=kind)
        dist.all_to_all_single(out, torch.arange(3.0 * rows).to(kind).view_as(out))
        return out

    calls = (
        lambda: dist.broadcast(two.clone(), 9),
        lambda: dist.reduce(two.clone(), 9),
        lambda: dist.gather(two, none, 9),
        lambda: dist.scatter(two.clone(), none, 9),
        lambda: dist.all_gather([two.clone()], two),
        lambda: dist.all_gather([three.clone()] * member.size, two),
        lambda: dist.all_gather([two.double()] * member.size, two),
        lambda: uneven(member.size + 1, torch.float64),
        lambda: uneven(1, torch.complex64),
        lambda: dist.all_to_all_single(two.clone(), two),
    )

    def said() -> list[str]:
        found = []
        for call in calls:
            try:
                found.append(str(call()))
            except (RuntimeError, ValueError, IndexError) as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    native = said()
    member.protect()
    return list(zip(native, said(), strict=True))
