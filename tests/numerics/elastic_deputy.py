"""The collectives of the deputy of a lost rank 0, by the members of a small world."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.communicators.errors import PeerLost
from recoverrun.worker.rank0.broadcasts import Broadcasts
from recoverrun.worker.rank0.gathers import Gathers
from recoverrun.worker.rank0.scatters import Scatters
from recoverrun.worker.tracking.rank0_gate import Rank0Gate
from rendezvous.protocol.layout import Layout
from tests.numerics.worlds import Member


class Runtime:
    active = True
    acting_rank = None
    winds = None

    def __init__(self, rank: int) -> None:
        self.gate = Rank0Gate(rank)


def without_rank_0(member: Member, told: list[str]) -> Any:
    """Rank 0 is lost of three replicas of one rank each; notices are `told`."""
    member.protect()
    if member.rank == 0:
        member.die()
    member.await_generation(2)
    return SimpleNamespace(
        view=SimpleNamespace(live_ranks=(1, 2), live=(1, 2)),
        layout=Layout(((0,), (1,), (2,))),
        runtime=Runtime(member.rank),
        env=SimpleNamespace(rank=member.rank),
        reporter=SimpleNamespace(notice=told.append),
        guarantee=SimpleNamespace(exact=False),
    )


def scatters_of_the_deputy(member: Member) -> list[Any]:
    """Rank 0 is lost, and the first of the others has made in its place what is scattered."""
    told: list[str] = []
    worker = without_rank_0(member, told)
    scatters = Scatters(worker, Broadcasts(worker))
    tensors, objects = (
        scatters.tensors(dist.scatter),
        scatters.objects(dist.scatter_object_list),
    )
    mine, said = torch.zeros(2), [None]
    if member.rank == 1:
        worker.runtime.gate.bring([torch.full((2,), float(rank)) for rank in range(3)])
    tensors(mine, None, src=0)
    if member.rank == 1:
        worker.runtime.gate.bring(["x" * rank for rank in range(3)])
    objects(said, None, src=0)
    errors = []
    for call in (tensors, objects):
        # Each rank holds a list of its own, but nobody has made it in the place of rank 0.
        own = None if call is tensors else ["y"] * 3
        try:
            call(mine if call is tensors else said, own, src=0)
        except PeerLost as error:
            errors.append(str(error))
    return [mine.tolist(), said, errors, len(told)]


def gathers_to_the_deputy(member: Member) -> list[Any]:
    """Rank 0 is lost, and the first of the others brings the lists that rank 0 would have."""
    worker = without_rank_0(member, [])
    gathers, deputy = Gathers(worker), member.rank == 1
    slots = [torch.zeros(1) for _ in range(member.size)] if deputy else None
    said = [None] * member.size if deputy else None
    gathers.tensors(dist.gather)(torch.ones(1) * member.rank, slots, dst=0)
    gathers.objects(dist.gather_object)("x" * member.rank, said)
    return [slots and torch.cat(slots).tolist(), said]
