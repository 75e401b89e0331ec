"""At the first step: prove that this script's microbatches can be executed again, as another slot.

Every rank executes the first microbatch of the *next* slot from the context which that slot's rank
left, and the gradient is compared with the one that rank really computed. So data, random streams
and rank-dependent variables are all checked on the real run, before anything depends on them. What
cannot be re-executed is protected in `equal-count` mode or not at all, never run wrongly.

Gradients are compared by a sketch: their norm, and their projections on fixed pseudo-random
directions. Two different samples agree in none of them; the same sample agrees in all to rounding.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack
import torch

from ft_collectives.agreement import told_apart
from ft_collectives.fabric import Channel, Communicator, Fabric
from ft_collectives.faults import Superseded
from recoverrun.hooks import exact, handover, seeding, slices
from recoverrun.hooks.bulk import marks
from recoverrun.hooks.context import ATTRIBUTE_TENSOR_BYTES, Context, key_of, told
from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.heritage import named
from recoverrun.hooks.impersonate import TALKS
from recoverrun.hooks.rng import tensor_bytes
from recoverrun.hooks.runtime import Microbatch, Refused, Shape
from recoverrun.hooks.shares import unlike
from rendezvous.messages import Promise

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

DIRECTIONS = 4
TOLERANCE = 1e-3
"""Of the gradient's norm: rounding in half precision stays below, another sample far above."""

UNPROVED = "not proved: a loss interrupted the rehearsal of the first step"

LOST = (
    "recoverrun: a rank was lost in the first step, and its part in it cannot be made up for this "
    "script"
)

ORDER: tuple[Promise, ...] = ("unprotected", "equal-count", "exact-samples")


def sketch(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Norm and projections of the concatenation of `tensors`, float64, on the CPU."""
    parts = torch.zeros(1 + DIRECTIONS, dtype=torch.float64)
    offset = 0
    for tensor in tensors:
        values = tensor.detach().reshape(-1).to(device="cpu", dtype=torch.float64)
        places = torch.arange(offset, offset + values.numel(), dtype=torch.float64)
        parts[0] += values.square().sum()
        for number in range(DIRECTIONS):
            # A fixed sequence of signs and sizes without structure that a gradient could share.
            direction = torch.sin(places * (1.0 + 0.61803398875 * (number + 1)) ** 2 + number)
            parts[1 + number] += (values * direction).sum()
        offset += values.numel()
    return parts


def agree(one: torch.Tensor, other: torch.Tensor) -> tuple[bool, float]:
    """Are these sketches of the same gradient? And how far are they apart, relative to its norm?"""
    scale = float(one[0].sqrt())
    norms = abs(float(one[0].sqrt() - other[0].sqrt()))
    apart = max(norms, float((one[1:] - other[1:]).abs().max()))
    if not scale:
        return apart == 0, apart
    return apart <= TOLERANCE * scale, apart / scale


def learn(session: "Session") -> None:
    """The first commit point: how the script goes through a step, proved by a rehearsal."""
    runtime = session.runtime
    session.preview.goes_on()
    try:
        runtime.shape = runtime.learn()
        if runtime.shape.slices:
            slices.join(session, runtime.shape)
    except Refused as refusal:
        runtime.shape = None
        decline(session, str(refusal))
        return
    rehearse(session, session.sketch)


def rehearse(session: "Session", own: torch.Tensor) -> None:
    """Run the rehearsal at the first commit point; concludes with this run's promise.

    A loss interrupts it on all ranks or on some. Where nobody had concluded, the survivors begin
    anew; else those who had not take over what was concluded, because the others do not come back.
    """
    fabric = session.fabric
    assert fabric is not None, "protected"
    while True:
        generation = fabric.view.generation
        try:
            elsewhere = session.booth.concluded(generation)
            if elsewhere:
                promise = found = ORDER[elsewhere - 1]
                reason = UNPROVED
                session.tallies.judge_alone()
            else:
                found, reason = _exchange(session, fabric, generation, own)
                promise = _everybody(session, generation, found)
                if promise != "unprotected":
                    handover.exchange(session, generation)
            session.booth.conclude(generation, 1 + ORDER.index(promise))
            break
        except Superseded:
            continue
    _complete(session, promise, reason)
    session.conclude(promise, reason, found)
    exact.insist(session, promise, reason if found == promise else "another rank says why")


def decline(session: "Session", refusal: str) -> None:
    """This rank cannot serve the script: take part, so that all ranks conclude the same."""
    fabric = session.fabric
    assert fabric is not None and session.reducer is not None, "protected"
    while True:
        generation = fabric.view.generation
        try:
            if not session.booth.concluded(generation):
                gather(fabric, session.reducer.channel, generation, {"refusal": refusal})
                _everybody(session, generation, "unprotected")
            session.booth.conclude(generation, 1 + ORDER.index("unprotected"))
            break
        except Superseded:
            continue
    session.tallies.judge_alone()
    _complete(session, "unprotected", refusal)
    session.conclude("unprotected", refusal)


def _complete(session: "Session", promise: Promise, reason: str) -> None:
    """Raises RuntimeError where a rank is lost already, and nothing is made up for it."""
    assert session.layout is not None and session.fabric is not None, "protected"
    lost = len(session.fabric.view.live_ranks) < session.layout.world_size
    if lost and promise == "unprotected":
        raise RuntimeError(f"{LOST}: {reason}")


def _exchange(
    session: "Session", fabric: Fabric, generation: int, own: torch.Tensor
) -> tuple[Promise, str]:
    top = session.impersonator.captures.get((session.step, session.attempt, 1))
    assert top is not None, "captured after the first microbatch"
    assert session.reducer is not None, "protected"
    buckets = [[bucket.size, str(bucket.dtype)] for bucket in session.reducer.buckets.values()]
    layout, machine, shape = session.layout, session.machine, session.runtime.shape
    assert shape is not None, "learned"
    bulk = _bulk(session.runtime.microbatches[0], shape)
    mine = {
        "refusal": "", "context": top.pack(), "sketch": tensor_bytes(own), "buckets": buckets,
        "bulk": bulk, "told": session.tallies.found(),
        "workers": seeding.has_workers(session.runtime.sources),
    }  # fmt: skip
    others = gather(fabric, session.reducer.channel, generation, mine)
    assert layout is not None and machine is not None, "protected"
    refused = [one["refusal"] for one in others.values() if one["refusal"]]
    if refused:
        session.tallies.judge_alone()
        return "unprotected", refused[0]
    unserved = session.tallies.judge({rank: one["told"] for rank, one in others.items()})
    if unserved:
        return "unprotected", unserved
    words = misfit({rank: one["buckets"] for rank, one in others.items()})
    if words:
        raise RuntimeError(words)
    _, shard = layout.place(session.env.rank)
    slots = len(layout.replicas)
    following = [layout.replicas[(machine.slot + n) % slots][shard] for n in range(1, slots)]
    living = [rank for rank in following if rank in others]
    if not living:
        return "exact-samples", UNPROVED
    partner = living[0]
    session.impersonator.inherit(partner, (others[partner]["context"],))
    theirs = torch.frombuffer(bytearray(others[partner]["sketch"]), dtype=torch.float64)
    context = Context.unpack(others[partner]["context"])
    different = unlike(bulk, others[partner]["bulk"])
    found, reason = _redo(session, partner, theirs, sorted(different))
    different |= unlike(top.attributes, context.attributes)
    if _shared(session, fabric, generation, found, different):
        session.impersonator.inherit(partner, (others[partner]["context"],))
        unequal = sorted(unlike(bulk, others[partner]["bulk"]))
        found, reason = _redo(session, partner, theirs, unequal)
    if any(one["workers"] for one in others.values()):
        channel = session.reducer.channel
        otherwise = session.sources.seeding.compare(
            session.runtime.sources, partner, partial(gather, fabric, channel, generation)
        )
        if otherwise and found == "exact-samples":
            return "equal-count", otherwise
    return found, reason


def _shared(
    session: "Session", fabric: Fabric, generation: int, found: Promise, different: set[Any]
) -> bool:
    """Do all ranks now know what others hold otherwise, so that it is worth to try once more?"""
    assert session.reducer is not None, "protected"
    said = {
        "exact": found == "exact-samples",
        "different": [told(key) for key in different],
    }
    heard = gather(fabric, session.booth.channel, generation, said)
    keys = {key_of(key) for one in heard.values() for key in one["different"]}
    if not keys or all(one["exact"] for one in heard.values()):
        return False
    microbatch, shares = session.runtime.microbatches[0], session.impersonator.shares
    mine = shares.own(keys, {**microbatch.turn.globals, **microbatch.names})
    given = gather(fabric, session.reducer.channel, generation, {"shares": mine})
    known = shares.hear({rank: one["shares"] for rank, one in given.items()}, session.env.rank)
    words = gather(fabric, session.booth.channel, generation, {"known": known})
    return all(one["known"] for one in words.values())


def _bulk(microbatch: Microbatch, shape: Shape) -> dict[str, str]:
    """Marks of large data among the variables that a microbatch reads."""
    visible = {**microbatch.turn.globals, **microbatch.names}
    read = {name: visible[name] for name in sorted(shape.region.live_in & visible.keys())}
    return marks(read, ATTRIBUTE_TENSOR_BYTES)


def misfit(buckets: dict[int, list[list[Any]]]) -> str:
    """One sentence if ranks would reduce unlike gradients, else "". gloo would end the process.

    Of every rank the elements and type of each of its buckets, in the order of their reduction; the
    first ones that differ are named.
    """
    for place in range(max(map(len, buckets.values()))):
        here = {rank: mine[place : place + 1] for rank, mine in buckets.items()}
        words = {rank: "{} of {}".format(*one[0]) if one else "none" for rank, one in here.items()}
        if said := told_apart(words):
            return f"the gradients of ranks do not fit together, so nothing is summed: {said}"
    return ""


def _redo(
    session: "Session", partner: int, theirs: torch.Tensor, different: list[str]
) -> tuple[Promise, str]:
    """Execute the partner's first microbatch and judge the gradient by `theirs`.

    `different` are marks of large data that it holds otherwise.
    """
    strategy, shape = session.strategy, session.runtime.shape
    assert strategy is not None and shape is not None, "protected"
    kept = strategy.set_aside()
    try:
        session.impersonator.rehearsing = True
        session.impersonator.knows(partner, session.step)
        reached = session.impersonator.execute(partner, 0, shape)
        redone = sketch(strategy.accumulators()) if reached else None
    except NotReplayable as refusal:
        return "equal-count", str(refusal)
    finally:
        session.impersonator.rehearsing = False
        strategy.put_back(kept)
        session.impersonator.forget(partner)
    if redone is None:
        return "equal-count", f"re-executing {shape.region.id} did not reach its backward"
    equal, apart = agree(theirs, redone)
    if equal:
        how = "bit for bit" if apart == 0 else f"to {apart:.0e} of its norm"
        return "exact-samples", (
            f"{shape.region.id}: rank {partner}'s microbatch, executed again here, gave its "
            f"gradient {how} ({shape.pattern}, {shape.microbatches} a step)"
        )
    if session.impersonator.talked:
        return "equal-count", TALKS
    kept_there = sorted({*different, *map(named, session.impersonator.excused or ())})
    why = "its data or random numbers come from somewhere that cannot be told"
    if kept_there:
        names = ", ".join(name.removesuffix("#") for name in kept_there[:3])
        why = f"rank {partner} holds other data in {names} than this rank"
    return "equal-count", (
        f"{shape.region.id}: rank {partner}'s microbatch, executed again here, gave another "
        f"gradient (off by {apart:.0e} of its norm): {why}"
    )


def _everybody(session: "Session", generation: int, promise: Promise) -> Promise:
    """The weakest promise of any rank holds for all."""
    return ORDER[session.booth.least(generation, ORDER.index(promise))]


def gather(
    fabric: Fabric, channel: Channel, generation: int, mine: dict[str, Any]
) -> dict[int, dict[str, Any]]:
    """What every member of `channel` says, by rank. Superseded if `generation` ends first."""
    now = fabric.meet(channel)
    if now.generation != generation:
        raise Superseded
    packed = msgpack.packb(mine, use_bin_type=True)
    sizes = _all_gather(fabric, channel, now, torch.tensor([len(packed)]))
    room = max(int(size[0]) for size in sizes)
    padded = torch.zeros(room, dtype=torch.uint8)
    padded[: len(packed)] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    rows = _all_gather(fabric, channel, now, padded)
    return {
        rank: msgpack.unpackb(tensor_bytes(row[: int(size[0])]), raw=False)
        for rank, row, size in zip(now.members, rows, sizes, strict=True)
    }


def _all_gather(
    fabric: Fabric, channel: Channel, now: Communicator, tensor: torch.Tensor
) -> list[torch.Tensor]:
    outs = [torch.empty_like(tensor) for _ in now.members]
    if len(outs) == 1:
        return [tensor]
    staged = [tensor, *outs]
    fabric.bury(staged)
    pending = fabric.launch(
        channel, now.generation, lambda group: group.allgather([outs], [tensor])
    )
    fabric.finish([pending], now.generation)
    fabric.unbury(staged)
    return outs
