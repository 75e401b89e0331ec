"""Every collective that a script may call, by the members of a small world (see `worlds`)."""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ft_collectives.process_group.substitutes import answering, requiring_roots
from tests.numerics.worlds import Member

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
SHAPES: tuple[tuple[int, ...], ...] = ((4, 3), (0,), (), (1,), (4, 1, 2))


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


# --------------------------------------------------------------------------- every function


def all_gather(mine: torch.Tensor, size: int) -> Any:
    outs = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(outs, mine)
    return outs


def all_gather_into(mine: torch.Tensor, size: int) -> Any:
    mine = mine if mine.dim() else mine.view(1)
    out = mine.new_zeros((size * mine.size(0), *mine.shape[1:]))
    dist.all_gather_into_tensor(out, mine)
    return out


def gather(mine: torch.Tensor, size: int) -> Any:
    outs = [torch.zeros_like(mine) for _ in range(size)] if dist.get_rank() == 1 else None
    dist.gather(mine, outs, dst=1)
    return outs


def scatter(mine: torch.Tensor, size: int) -> Any:
    out = torch.zeros_like(mine)
    parts = [(mine + at).to(mine.dtype) for at in range(size)]
    dist.scatter(out, parts if dist.get_rank() == 1 else None, src=1)
    return out


def reduce(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    dist.reduce(mine, dst=1)
    return mine if dist.get_rank() == 1 else None


def broadcast(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    dist.broadcast(mine, src=1)
    return mine


def reduce_scatter(mine: torch.Tensor, size: int) -> Any:
    out = torch.zeros_like(mine)
    dist.reduce_scatter(out, [mine] * size)
    return out


def reduce_scatter_tensor(mine: torch.Tensor, size: int) -> Any:
    out = torch.zeros_like(mine)
    dist.reduce_scatter_tensor(out, torch.cat([mine] * size) if mine.dim() else mine.repeat(size))
    return out


def all_to_all(mine: torch.Tensor, size: int) -> Any:
    outs = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_to_all(outs, [mine] * size)
    return outs


def all_to_all_single(mine: torch.Tensor, size: int) -> Any:
    source = torch.cat([mine] * size) if mine.dim() else mine.repeat(size)
    out = torch.zeros_like(source)
    dist.all_to_all_single(out, source)
    return out


def all_reduce(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    dist.all_reduce(mine)
    return mine


def all_reduce_mean(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    if mine.is_floating_point():
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    return mine


def all_reduce_max(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    if not mine.is_complex():
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine


def later(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    return [mine, work.get_future().value()[0], work.result()[0]]


def by_functional(mine: torch.Tensor, size: int) -> Any:
    mine = mine.reshape(-1)
    stacked = torch.cat([mine] * size)
    outs = [
        functional.all_reduce(mine, "sum", dist.group.WORLD),
        functional.all_gather_tensor(mine, 0, dist.group.WORLD),
        functional.reduce_scatter_tensor(stacked, "sum", 0, dist.group.WORLD),
        functional.all_to_all_single(stacked, None, None, dist.group.WORLD),
        functional.broadcast(mine, 1, dist.group.WORLD),
        *functional.all_gather_into_tensor_coalesced([mine, mine], dist.group.WORLD),
    ]
    return [torch.ops._c10d_functional.wait_tensor(out).clone() for out in outs]


FUNCTIONS = (
    all_reduce,
    all_reduce_mean,
    all_reduce_max,
    later,
    reduce,
    broadcast,
    all_gather,
    all_gather_into,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
)


def same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and bool(torch.equal(one, other))


def outcome_of(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (RuntimeError, TypeError) as error:
        return type(error).__name__


def as_native(member: Member) -> list[str]:
    """Every function, dtype and shape: protected as it was before. What differs is returned."""
    cases = [
        (function, values(member.rank, shape, dtype))
        for function in FUNCTIONS
        for dtype in DTYPES
        for shape in SHAPES
        if not (function is reduce_scatter_tensor and shape == ())  # ends the process in gloo
        if dtype in DTYPES[:1] or shape == SHAPES[0]
    ]
    cases += [(f, torch.arange(12.0).view(3, 4).t() + member.rank) for f in FUNCTIONS]
    cases += [(by_functional, values(member.rank, (3,), torch.float32))]
    before = [outcome_of(function, mine, member.size) for function, mine in cases]
    member.protect()
    differing = []
    for (function, mine), expected in zip(cases, before, strict=True):
        got = outcome_of(function, mine, member.size)
        same = got == expected if isinstance(expected, str) else not isinstance(got, str)
        if not same or (not isinstance(expected, str) and not same_bits(got, expected)):
            differing.append(
                f"{function.__name__} {mine.dtype} {tuple(mine.shape)}: {expected} became {got}"
            )
    return differing


def after_a_loss(member: Member) -> dict[str, Any]:
    """Every function with rank 3 gone; the value of rank r is r + 1."""
    member.protect()
    if member.rank == 3:
        member.die()
    mine = torch.full((2,), member.rank + 1.0)
    results = {function.__name__: outcome_of(function, mine, member.size) for function in FUNCTIONS}
    results["integers"] = all_reduce(torch.tensor([member.rank + 1]), member.size)
    for dtype in (torch.bfloat16, torch.complex64):
        results[str(dtype)] = all_reduce(torch.tensor([member.rank + 1.0], dtype=dtype), 4)
    results["functional"] = by_functional(mine, member.size)
    gathered: list[Any] = [None] * member.size
    dist.all_gather_object(gathered, {"rank": member.rank})
    results["all_gather_object"] = gathered
    on_root: list[Any] | None = [None] * member.size if member.rank == 0 else None
    dist.gather_object(f"of {member.rank}", on_root, dst=0)
    results["gather_object"] = on_root
    told = ["from 0", {"a": 1}] if member.rank == 0 else [None, None]
    dist.broadcast_object_list(told, src=0)
    results["broadcast_object_list"] = told
    dealt: list[Any] = [None]
    dist.scatter_object_list(dealt, list("abcd") if member.rank == 0 else None, src=0)
    results["scatter_object_list"] = dealt
    dist.monitored_barrier()
    dist.barrier()
    with dist._coalescing_manager(group=dist.group.WORLD):
        coalesced = [torch.ones(2), torch.ones(3)]
        for one in coalesced:
            dist.all_reduce(one)
    results["coalesced"] = coalesced
    given = {name: plain(value) for name, value in results.items()}
    dist.destroy_process_group()
    return given


def answered(member: Member) -> list[Any]:
    """Gathers with rank 1 lost, of which somebody knows what it would have given."""
    member.protect()
    if member.rank == 1:
        member.die()
    asked: list[int] = []

    def answer(rank: int) -> torch.Tensor:
        asked.append(rank)
        return torch.tensor(100)

    mine = torch.tensor([member.rank])
    with answering(answer):
        known = all_gather_into(mine, member.size)
    return [known.tolist(), asked, all_gather_into(mine, member.size).tolist()]


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


def made_late(member: Member) -> list[Any]:
    """Groups made once the replicas are known, before and after the loss of rank 3."""
    member.protect()
    before = dist.new_group([0, 1, 3])
    if member.rank == 3:
        dist.all_reduce(torch.ones(1), group=before)
        member.die()
    said: list[Any] = []
    if member.rank in (0, 1):
        one = torch.ones(1)
        dist.all_reduce(one, group=before)
        said += [one.item(), dist.get_rank(before), dist.get_world_size(before)]
    member.await_generation(2)
    among = ([0, 1, 2, 3], [2, 3], [0, 1])
    for ranks, group in [(ranks, dist.new_group(ranks)) for ranks in among]:
        if member.rank in ranks:
            one = torch.full((1,), member.rank + 1.0)
            dist.all_reduce(one, group=group)
            gathered: list[Any] = [None] * len(ranks)
            dist.all_gather_object(gathered, member.rank, group=group)
            said += [one.item(), gathered, dist.get_rank(group)]
    return said


def late_loss(member: Member) -> list[float]:
    """A rank dies before it makes the group that the others make."""
    member.protect()
    if member.rank == 2:
        member.die()
    group = dist.new_group([0, 1, 2])
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return [one.item()]


def other_calls(member: Member) -> dict[str, Any]:
    """The calls that `after_a_loss` leaves out, with rank 3 gone; the value of rank r is r + 1."""
    member.protect()
    if member.rank == 3:
        member.die()
    member.await_generation(2)
    said: dict[str, Any] = {}
    mine = torch.full((1,), member.rank + 1.0)
    for op in (dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        one = mine.clone()
        dist.all_reduce(one, op=op)
        said[str(op)] = one.item()
    flag = torch.tensor([member.rank == 1])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    said["flag"] = flag.item()
    said["to a lost root"] = [
        dist.reduce(mine.clone(), dst=3),
        dist.gather(mine, None, dst=3),
        dist.gather_object("x", None, dst=3),
    ]

    def tried(name: str, call: Any) -> None:
        try:
            call()
            said[name] = "nothing"
        except RuntimeError as error:
            said[name] = str(error)

    tried("isend", lambda: dist.isend(mine, 3).wait())
    tried("irecv", lambda: dist.irecv(mine.clone(), 3).wait())
    pair = [dist.P2POp(dist.isend, mine, 3), dist.P2POp(dist.irecv, mine.clone(), 3)]
    tried("batch", lambda: [work.wait() for work in dist.batch_isend_irecv(pair)])
    with requiring_roots():
        tried("objects", lambda: dist.broadcast_object_list([None], src=3))
        tried("scatter_object", lambda: dist.scatter_object_list([None], None, src=3))
    return said


def lost_roots(member: Member) -> list[str]:
    """Rooted calls of the script that name a lost rank."""
    member.protect()
    if member.rank == 3:
        member.die()
    member.await_generation(2)
    said = []
    ones = torch.ones(2)

    def named(call: Any, *arguments: Any, **names: Any) -> None:
        with requiring_roots():
            call(*arguments, **names)

    for call in (
        lambda: named(dist.broadcast, ones, src=3),
        lambda: dist.scatter(ones, None, src=3),
        lambda: dist.send(ones, 3),
        lambda: dist.recv(ones, 3),
        lambda: dist.recv(ones),
    ):
        try:
            call()
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    substitute = torch.full((2,), float(member.rank))
    dist.broadcast(substitute, src=3)  # as C++ calls it
    dist.reduce(torch.ones(2), dst=3)
    dist.gather(torch.ones(2), None, dst=3)
    return [*said, str(substitute.tolist())]
