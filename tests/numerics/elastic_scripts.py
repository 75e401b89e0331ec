"""The scripts of the members of a small world (see `worlds`)."""

import itertools
import random
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver, utils
from torch.nn.parallel import DistributedDataParallel

from ft_collectives.process_group.substitutes import CallSite, requiring_roots
from ft_collectives.process_group.substitution_policy import (
    FindLostInputs,
    LostInputs,
    SubstitutionPolicy,
)
from recoverrun.worker.patches.distributed_checkpoint import Checkpoints, among_survivors
from tests.numerics import elastic_functions as functions
from tests.numerics.worlds import Member

# --------------------------------------------------------------------------- losses at any moment

OPERATIONS = (
    "sum", "avg", "integers", "max", "gather", "into", "broadcast", "scatter_sum", "exchange",
    "objects", "barrier",
)  # fmt: skip


def offering(rank: int, number: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float64) % 7 + 10 * (rank + 1) + number


def operate(name: str, number: int, rank: int, size: int, count: int) -> Any:
    mine = offering(rank, number, count)
    match name:
        case "sum":
            dist.all_reduce(mine)
        case "avg":
            dist.all_reduce(mine, op=dist.ReduceOp.AVG)
        case "integers":
            mine = mine.to(torch.int64)
            dist.all_reduce(mine)
        case "max":
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        case "gather":
            return torch.stack(functions.all_gather(mine, size))
        case "into":
            return functions.all_gather_into(mine, size)
        case "broadcast":
            dist.broadcast(mine, src=number % size)
        case "scatter_sum":
            return functions.reduce_scatter_tensor(mine, size)
        case "exchange":
            return functions.all_to_all_single(mine, size)
        case "objects":
            gathered: list[Any] = [None] * size
            dist.all_gather_object(gathered, (rank, "x" * (rank + 1)))
            return gathered
        case "barrier":
            dist.barrier()
    return mine


def stress(member: Member, seed: int, victims: dict[int, int]) -> list[Any]:
    """Random operations; `victims` maps ranks to the moment of their death.

    A negative moment is a time instead: so many microseconds after the operations have begun.
    """
    chosen = random.Random(seed)
    names = [chosen.choice(OPERATIONS) for _ in range(10)]
    count = chosen.choice((3, 3, 1 << 16))
    member.protect()
    moment = victims.get(member.rank)
    if moment is not None and moment >= 0:
        member.die_at(moment)
    elif moment is not None:
        killer = threading.Timer(-moment * 1e-6, member.die)
        killer.daemon = True
        killer.start()
    results = []
    for number, name in enumerate(names):
        result = operate(name, number, member.rank, member.size, count)
        results.append(result if isinstance(result, list) else _brief(result))
    return results


def _brief(tensor: torch.Tensor) -> Any:
    flat = tensor.reshape(-1).to(torch.float64)
    places = torch.arange(1, flat.numel() + 1, dtype=torch.float64) % 11 + 1
    return (flat[:2].tolist(), flat[-2:].tolist(), float((flat * places).sum()))


# --------------------------------------------------------------------------- single stories


def dies_at(member: Member, victim: int, moment: int) -> Any:
    fabric = member.protect()
    if member.rank == victim:
        member.die_at(moment)
    first = torch.full((2,), member.rank + 1.0)
    dist.all_reduce(first)
    slots = functions.all_gather(torch.tensor([member.rank + 1.0]), member.size)
    return first.tolist(), [slot.item() for slot in slots], fabric.view.generation


def leaves_early(member: Member, first: bool) -> Any:
    """Of a barrier, rank 0 sees the end and leaves, rank 3 dies, and the others miss the vote.

    Rank 0 leaves `first`, or after it has heard of the loss.
    """
    fabric = member.protect()
    finish = fabric.finish
    calls = itertools.count()

    def late(*arguments: Any) -> None:
        if next(calls) == 2:  # after the agreement and the data
            member.await_generation(2)
        finish(*arguments)

    if member.rank in (1, 2):
        fabric.finish = late  # type: ignore[method-assign]
    dist.barrier()
    if member.rank == 0:
        if first:
            member.tell("rank 0 leaves")
        else:
            member.await_generation(2)
        member.leave("left")
    if member.rank == 3:
        if first:
            member.await_word("rank 0 leaves")
        member.die()
    return fabric.view.generation


def objects(member: Member, victim: int, moment: int) -> list[Any]:
    """Calls of two operations each, sizes and contents, of objects of very different sizes."""
    member.protect()
    if member.rank == victim:
        member.die_at(moment)
    mine = "x" * (1 + 100 * member.rank)
    everybody: list[Any] = [None] * member.size
    dist.all_gather_object(everybody, mine)
    on_root: list[Any] | None = [None] * member.size if member.rank == 0 else None
    dist.gather_object(mine, on_root, dst=0)
    return [
        [len(one) // 100 for one in slots] if slots is not None else None
        for slots in (everybody, on_root)
    ]


def root_dies(member: Member, moment: int) -> str:
    """Rank 2 dies while it broadcasts what only it knows."""
    member.protect()
    if member.rank == 2:
        member.die_at(moment)
    mine = torch.full((3,), 7.0 if member.rank == 2 else 0.0)
    try:
        with requiring_roots():
            dist.broadcast(mine, src=2)
    except RuntimeError as error:
        return str(error)
    return str(mine.tolist())


def sites(member: Member, way: str, moment: int) -> str:
    """Rank 2 broadcasts three times from one place, and dies in the third."""
    member.protect()
    site, said = CallSite(), []
    for loop_frame in range(3):
        if member.rank == 2 and loop_frame == 2:
            member.die_at(moment)
        value = {"constant": 0.0, "own": 10.0 * member.rank}.get(way, float(loop_frame))
        mine = torch.tensor([value, float("nan")])
        site.call(done=way == "done" and member.rank == 0)
        try:
            with requiring_roots(site):
                dist.broadcast(mine, src=2)
        except RuntimeError as error:
            return str(error)
        said.append(mine[0].item())
        if way == "done":
            site.hear(torch.zeros(1), torch.ones(1))  # what others hold is not the root's
    return f"{said} {site.substitute}"


def late_protection(member: Member) -> float:
    """Ranks 0 and 1 are protected before they hear of the loss, rank 2 after it."""
    if member.rank == 2:
        member.await_generation(2)
    member.protect()
    if member.rank == 3:
        member.die()
    mine = torch.ones(1, dtype=torch.float64)
    dist.all_reduce(mine)
    return mine.item()


def dies_while_meeting(member: Member) -> tuple[float, int]:
    """Rank 3 dies; rank 2 dies of the news, before it has connected."""
    fabric = member.protect()
    if member.rank == 3:
        member.die()
    if member.rank == 2:
        fabric._connect = lambda *_: member.die()  # type: ignore[method-assign]
    mine = torch.tensor([member.rank + 1.0])
    dist.all_reduce(mine)
    return mine.item(), fabric.view.generation


def broken_without_a_death(member: Member) -> float:
    """Rank 1 sees its socket fail, once."""
    fabric = member.protect()
    finish = fabric.finish

    def failing(pendings: Any, generation: int) -> None:
        if member.rank == 1 and pendings and generation == 1:
            fabric._await_next_view(None, generation, "Connection closed by peer")
        finish(pendings, generation)

    fabric.finish = failing  # type: ignore[method-assign]
    mine = torch.tensor([member.rank + 1.0])
    dist.all_reduce(mine)
    return mine.item()


def failing_for_ever(member: Member) -> str:
    member.protect()
    if member.rank != 1:
        dist.all_reduce(torch.ones(1))
        return "done"
    fabric = member.fabric
    assert fabric is not None

    def failing(pendings: Any, generation: int) -> None:
        if pendings:
            fabric._await_next_view(None, generation, "Connection closed by peer")

    fabric.finish = failing  # type: ignore[method-assign]
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        member.say("result", str(error))
        member.die()
    return "no error"


def solo(member: Member) -> list[Any]:
    """The last of two."""
    told: list[list[Any]] = []
    member.protect(SubstitutionPolicy(on_partial=lambda *partial: told.append([*partial])))
    if member.rank == 1:
        member.die()
    results = [operate(name, 1, 0, 2, 4) for name in OPERATIONS if name != "broadcast"]
    results += [functions.all_to_all(torch.ones(1), 2), functions.gather(torch.ones(1), 2)]
    return [told, *(functions.plain(result) for result in results)]


def guessed(member: Member) -> list[Any]:
    """The last rank is lost; the first one supposes that it would have given twice as much."""
    told: list[list[Any]] = []
    flags = [False]

    def find(ranks: Sequence[int], tensors: Sequence[torch.Tensor]) -> FindLostInputs:
        theirs = [[2 * tensor for tensor in tensors]] if member.rank == 0 else []
        return lambda members: LostInputs(theirs, flags=flags[0] and member.rank == 0)

    member.protect(
        SubstitutionPolicy(
            find_lost_inputs=find, on_partial=lambda *partial: told.append([*partial])
        )
    )
    if member.rank == member.size - 1:
        member.die()
    sums = []
    for flags[0] in (False, True):
        given = torch.ones(1)
        dist.all_reduce(given)
        sums.append(given.item())
    return [sums, told]


def models(member: Member) -> list[Any]:
    """DDP's constructor, buffers and own reduction, on a protected group, around a loss."""
    torch.manual_seed(member.rank)
    member.protect()
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model = DistributedDataParallel(net)
    seen = [[p.tolist() for p in model.parameters()]]
    for step in range(3):
        if step == 1 and member.rank == 2:
            member.die()
        model.zero_grad()
        torch.manual_seed(10 * step + member.rank)
        model(torch.randn(4, 3)).square().mean().backward()
        seen.append([p.grad.tolist() for p in model.parameters() if p.grad is not None])
    buffers = DistributedDataParallel(net)
    seen.append([b.tolist() for b in buffers.buffers()])
    return seen


def subgroups(member: Member) -> list[float]:
    """Groups of a part of the world: one that loses a member, one that does not."""
    one, other = dist.new_group([0, 1]), dist.new_group([1, 2, 3])
    dist.barrier()  # a rank that dies while others connect to it is another story
    member.protect()
    if member.rank == 3:
        member.die()
    got = []
    for group in (one, other):
        mine = torch.ones(1)
        if dist.get_rank(group) >= 0:
            dist.all_reduce(mine, group=group)
        got.append(mine.item())
    return got


# --------------------------------------------------------------------------- checkpoints


def checkpoint(member: Member, victim: int, moment: int, folder: str) -> int:
    """Save what every rank holds, divided among those who are left; returns how often it began."""
    member.protect()
    begun: list[str] = []
    view = SimpleNamespace(live_ranks=(member.rank,))  # each says it, to be counted
    env = SimpleNamespace(rank=member.rank)
    reporter = SimpleNamespace(notice=begun.append)
    session: Any = SimpleNamespace(acting=False, reporter=reporter, view=view, env=env)
    vars(utils)["_DistWrapper"] = vars(state_dict_saver)["_DistWrapper"] = among_survivors(
        utils._DistWrapper
    )
    save = Checkpoints(session).whole(state_dict_saver._save_state_dict)
    vars(state_dict_saver)["_save_state_dict"] = save
    if member.rank == victim:
        member.die_at(moment)
    state = {str(number): torch.arange(float(number), number + 8) for number in range(12)}
    state_dict_saver.save(state, checkpoint_id=folder)
    return 1 + len(begun)
