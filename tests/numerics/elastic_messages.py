"""Point-to-point messages between members of a small world (see `worlds`)."""

from typing import Any

import torch
import torch.distributed as dist

from tests.numerics.worlds import Member


def messages(member: Member) -> list[Any]:
    """Ranks 0 and 1 talk; 2 dies while 1 waits for it; 3 watches."""
    member.protect()
    got: list[Any] = []
    if member.rank == 2:
        dist.recv(torch.zeros(1), 1)
        member.die()
    if member.rank == 0:
        early = [dist.isend(torch.tensor([float(at)]), 1, tag=at % 2) for at in range(4)]
        for work in early:
            work.wait()
        dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.tensor([7.0]), 1),
                dist.P2POp(dist.irecv, reply := torch.zeros(1), 1),
            ]
        )[1].wait()
        got.append(reply.item())
    if member.rank == 1:
        slots = [torch.zeros(1) for _ in range(4)]
        works = [dist.irecv(slots[at], 0, tag=at % 2) for at in (1, 0, 3, 2)]
        for work in works:
            work.wait()
        got += [slot.item() for slot in slots]
        swap = [
            dist.P2POp(dist.isend, torch.tensor([8.0]), 0),
            dist.P2POp(dist.irecv, other := torch.zeros(1), 0),
        ]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
        got.append(other.item())
        waiting = dist.irecv(torch.zeros(1), 2)
        dist.send(torch.ones(1), 2)
        try:
            waiting.wait()
            got.append("nothing")
        except RuntimeError as error:
            got.append(str(error).splitlines()[0])
    member.await_generation(2)
    if member.rank == 0:
        dist.send(torch.tensor([5.0]), 3)
        dist.send(torch.tensor([6.0]), 1)
    elif member.rank in (1, 3):
        last = torch.zeros(1)
        dist.recv(last, 0)
        got.append(last.item())
    dist.barrier()
    return got


def a_send_waits_for_nobody(member: Member) -> float:
    """The receiver takes part in a barrier before it looks at the message."""
    member.protect()
    slot = torch.zeros(1)
    work = dist.isend(torch.ones(1), 1) if member.rank == 0 else None
    dist.barrier()
    if work is not None:
        work.wait()
    else:
        dist.recv(slot, 0)
    return slot.item()
