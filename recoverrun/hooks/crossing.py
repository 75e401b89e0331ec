"""Once, early: prove that a lost rank can be followed from one step to the next.

The rehearsal of the first step proves that a microbatch can be executed again as another slot. How
that slot's values go on moving afterwards is told by rules (`heritage`), and a script may break
them: by a stopwatch, by a batch that it fetches ahead after its update. So in the second step all
ranks say where they stood at the end of the first and where they stand now, and each compares what
it would have said of its neighbour. Then it executes the neighbour's microbatch once more, without
what it would not have known: if that gives the neighbour's gradient all the same, nothing was
missing. Else the promise of exact samples is taken back before anybody is lost, not after.
"""

from typing import TYPE_CHECKING, Any

import torch

from ft_collectives.fabric import Fabric
from ft_collectives.faults import Superseded
from recoverrun.hooks import exact, rng
from recoverrun.hooks.context import Context, Key, differences, key_of, told
from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.heritage import Heritage, parted
from recoverrun.hooks.rehearsal import ORDER, agree, gather, sketch
from recoverrun.hooks.rng import tensor_bytes
from rendezvous.messages import Promise

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

AT_STEP = 1
"""The first step that another one leads up to."""


class Crossing:
    """Keeps the sketch of this rank's first gradient of the step in which ranks compare.

    And where this rank stood as its latest backward ended.
    """

    def __init__(self) -> None:
        self._sketch = torch.empty(0)
        self._after: Context | None = None

    def due(self, session: "Session") -> bool:
        """Is it this step? Then its reductions wait until the commit point."""
        machine = session.machine
        return (
            session.step == AT_STEP
            and session.promise == "exact-samples"
            and machine is not None
            and len(machine.view.live) == len(machine.layout.slots)
        )

    def proving(self, session: "Session") -> bool:
        """Is it a step in which the gradients of single microbatches are compared?"""
        return session.promise is None or self.due(session)

    def backward_done(self, session: "Session") -> None:
        """A microbatch's backward has returned."""
        runtime, strategy = session.runtime, session.strategy
        if not self.due(session) or not runtime.microbatches:
            return
        assert strategy is not None and runtime.shape is not None, "protected, and learned"
        if len(runtime.microbatches) == 1:
            self._sketch = sketch(strategy.accumulators())
        self._after = session.impersonator.present(AT_STEP + 1, runtime.shape)

    def look(self, session: "Session", generation: int) -> None:
        """At the commit point: all ranks compare. A loss ends it, for this rank or for all."""
        if not self.due(session):
            return
        assert session.fabric is not None and session.strategy is not None, "protected"
        shape = session.runtime.shape
        if shape is not None and shape.slices:  # it is over only now
            self._sketch = sketch(session.strategy.accumulators())
        try:
            promise, reason = self._compare(session, session.fabric, generation)
            weakest = ORDER[session.booth.least(generation, ORDER.index(promise))]
        except Superseded:
            return  # then it shows when it matters, as before
        if weakest == "exact-samples":
            return
        assert shape is not None, "learned"
        session.makeup.exact = False
        session.sources.rehearsed(False)
        session.voice.promise(promise, shape.microbatches, reason)
        exact.insist(session, weakest, reason if promise == weakest else "another rank says why")

    def _compare(self, session: "Session", fabric: Fabric, generation: int) -> tuple[Promise, str]:
        layout, machine, reducer = session.layout, session.machine, session.reducer
        assert layout is not None and machine is not None and reducer is not None, "protected"
        mine = _captured(session)
        said = {
            "contexts": [one.pack() for one in mine],
            "sketch": tensor_bytes(self._sketch),
        }
        others = gather(fabric, reducer.channel, generation, said)
        slots, (_, shard) = len(layout.replicas), layout.place(session.env.rank)
        partner = layout.replicas[(machine.slot + 1) % slots][shard]
        theirs = [Context.unpack(one) for one in others[partner]["contexts"]]
        unknown: frozenset[Key] = frozenset()
        reason = ""
        if mine and [one.point for one in mine] == [one.point for one in theirs]:
            unknown, reason = _foretold(session, partner, theirs, mine)
            unknown |= self._moved_late(session, theirs[-1], mine[-1])
        words = {
            "unknown": [told(key) for key in sorted(unknown, key=str)],
            "reason": reason,
            "came": bool(mine),
        }
        heard = gather(fabric, session.booth.channel, generation, words)
        if reason:
            return "equal-count", reason
        if any(one["reason"] or not one["came"] for one in heard.values()):
            return "exact-samples", ""  # another rank says why not, or came here by another way
        tried = frozenset(key_of(one) for rank in sorted(heard) for one in heard[rank]["unknown"])
        given = torch.frombuffer(bytearray(others[partner]["sketch"]), dtype=torch.float64)
        return _redo(session, partner, theirs[-1], given, tried)

    def _moved_late(self, session: "Session", theirs: Context, mine: Context) -> frozenset[Key]:
        """What differs, and moved after our last backward: a chain does not run there."""
        ahead = session.impersonator.captures.get((AT_STEP + 1, 0, 0))
        shape, bearing = session.runtime.shape, session.impersonator.bearing
        if self._after is None or ahead is None or shape is None or shape.backwards > 1:
            return frozenset()
        moved = differences(self._after, ahead)
        differ = differences(theirs, mine)
        late: list[tuple[Key, Any]] = [
            *((key, differ.names[key]) for key in moved.names.keys() & differ.names.keys()),
            *(
                (key, differ.attributes[key])
                for key in moved.attributes
                if key in differ.attributes
            ),
        ]
        return frozenset(key for key, value in late if bearing.matters(key, value))


def _captured(session: "Session") -> list[Context]:
    """Our captures at the top of the step before, at its end, and at the top of this one."""
    captures = session.impersonator.captures
    tops = [one for one in captures.values() if one.step == AT_STEP - 1 and one.kind == "top"]
    ahead = captures.get((AT_STEP, 0, 0))
    top = captures.get((AT_STEP, session.attempt, 1))
    return [tops[-1], ahead, top] if tops and ahead is not None and top is not None else []


def _foretold(
    session: "Session", partner: int, theirs: list[Context], mine: list[Context]
) -> tuple[frozenset[Key], str]:
    """What we would not have known of the partner at the top of this step.

    Also why its random streams could not be told, or "".
    """
    bearing, runtime = session.impersonator.bearing, session.runtime
    own = [*session.impersonator.captures.values()]
    heirs = [
        Heritage(rank=partner, theirs=there, mine=here)
        for there, here in zip(theirs, mine, strict=True)
    ]
    following = [*(one.streams for one in runtime.microbatches[1:]), rng.read()]
    try:
        for heir in heirs:
            heir.excused = session.impersonator.excused or frozenset()
            heir.part(own, bearing.matters, bearing.is_written)
        heirs[0].streams_at(mine[-1].streams)
        for place, after in enumerate(following):
            microbatch, *later = runtime.microbatches[place:]
            if not heirs[0].counted:  # who only parted is told by others (`kinship`)
                heirs[0].needs_seed(microbatch, after)
            heirs[-1].require_hosts(microbatch, after, later)
    except NotReplayable as reason:
        return frozenset(), str(reason)
    return heirs[1].unforeseen(mine[-1], theirs[-1], bearing.matters), ""


def _redo(
    session: "Session", partner: int, top: Context, theirs: torch.Tensor, tried: frozenset[Key]
) -> tuple[Promise, str]:
    """Execute the partner's first microbatch, with our own values of `tried`."""
    strategy, shape, actor = session.strategy, session.runtime.shape, session.impersonator
    assert strategy is not None and shape is not None, "protected"
    before = actor.bearing.immaterial
    actor.bearing.immaterial |= tried
    kept = strategy.set_aside()
    equal, apart = False, float("inf")
    try:
        actor.rehearsing = True
        actor.inherit(partner, (top.pack(),))
        if actor.knows(partner, session.step) and actor.execute(partner, 0, shape):
            equal, apart = agree(theirs, sketch(strategy.accumulators()))
    except NotReplayable as refusal:
        return "equal-count", str(refusal)
    finally:
        actor.rehearsing = False
        strategy.put_back(kept)
        actor.forget(partner)
        if not equal:
            actor.bearing.immaterial = before
    if equal:
        return "exact-samples", ""
    if tried:
        return "equal-count", parted(sorted(tried, key=str), "between steps")
    return "equal-count", (
        f"{shape.region.id}: in step {AT_STEP}, rank {partner}'s microbatch, executed again here, "
        f"gave another gradient (off by {apart:.0e} of its norm): something that a rank carries "
        "from step to step cannot be told"
    )
