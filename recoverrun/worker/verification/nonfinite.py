"""Gradients that are not finite on some replicas only: the script's doing, or a machine's?

With `--check-finite` ranks compare at each commit point whether what they have accumulated is
finite. If all are, or none is, nothing happens. Otherwise the next replica with finite gradients
computes the microbatches of the odd one again, as that slot. What is not finite again is the
script's own (a loss that overflowed, say), and the step goes on as it would have. What is finite
there was spoilt by the machine: the odd replica leaves with an error, and its microbatches are made
up for as after any loss. So a fault that gives NaN on one machine costs a replica, not the run.
What that replica had noted of them (`evidence`) is spoilt as well: nobody is to be held to it.

All ranks take part in the same collectives in the same order: those that the plan of the step does
not surprise. A loss in between ends it; then this step is not looked at.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.vote import Booth
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.step.strategy import Strategy
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Notice, View

if TYPE_CHECKING:
    from recoverrun.worker.step.driver import Session

SAME, UNTOLD, SPOILT = 0, 1, 2
"""What re-execution shows. The least that any rank finds holds for all: not finite in one shard is
not finite, and who does not examine says SPOILT, which stands if nobody objects.
"""


class FaultyRank(RuntimeError):
    """This replica's gradients are not finite, and another one computed the same ones finite."""


def finite(tensors: list[torch.Tensor]) -> bool:
    """Whether every element of `tensors` is a number."""
    for tensor in tensors:
        # A sum is some twenty times as fast, and may overflow.
        if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            return False
    return True


def examiners(odd: list[int], live: tuple[int, ...]) -> dict[int, int]:
    """Who computes the microbatches of each odd slot again: the next slot that is not odd."""
    sound = [slot for slot in live if slot not in odd]
    after = {slot: [other for other in sound if other > slot] for slot in odd}
    return {slot: (after[slot] or sound)[0] for slot in odd}


class Guard:
    """Looks at each step of `driver` before its gradients are reduced for good."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._booth: Booth | None = None

    def check(self) -> None:
        """Raises FaultyRank if this replica's machine spoilt its gradients."""
        session = self._session
        fabric, layout, machine = session.fabric, session.layout, session.machine
        strategy = session.strategy
        if not session.env.check_finite or session.refusal or machine is None:
            return
        assert fabric is not None and layout is not None, "protected"
        assert strategy is not None, "protected"
        if self._booth is None:  # all ranks come here first at the same commit point
            self._booth = Booth(fabric, range(layout.world_size), "guard")
        with session.changed:
            surprised, view = machine.surprised, machine.view
        if surprised:
            return
        try:
            own = [0] * len(layout.slots)
            own[machine.slot] = int(not finite(strategy.accumulators()))
            counts = self._booth.count(view.generation, own, lambda: None)
            odd = [slot for slot in view.live if counts[slot]]
            if odd and len(odd) < len(view.live):
                self._examine(odd, view, _Parts(fabric, layout, strategy))
        except Superseded:
            return  # a loss: its recovery comes first

    def _examine(self, odd: list[int], view: View, parts: "_Parts") -> None:
        session, booth = self._session, self._booth
        machine = session.machine
        assert booth is not None and machine is not None, "just used"
        generation = view.generation
        contexts = self._contexts(generation, parts)
        if machine.slot in odd:  # before a verdict, behind which a rank may be ended at any moment
            session.remnants.unmark(session.step)
        for slot, examiner in examiners(odd, view.live).items():
            found = SPOILT
            if examiner == machine.slot:
                found = self._again(slot, contexts, parts)
            verdict = booth.least(generation, found)
            first = parts.layout.replicas[slot][0]
            told = f"step {session.step}: the gradients of replica {slot} are not finite"
            if verdict == SPOILT and slot == machine.slot:
                raise FaultyRank(f"{told}; replica {examiner} computed the same ones, and they are")
            if slot == machine.slot:
                for one in session.runtime.microbatches:
                    session.remnants.mark(session.step, one.index, one.mark)
            if verdict != SPOILT and session.env.rank == first:
                why = (
                    "nor when replica {} computes them" if verdict == SAME else "{} cannot tell why"
                )
                session.link.send(Notice(
                    rank=first, generation=generation, event="notice.give",
                    reason=f"{told}, {why.format(examiner)}",
                ))  # fmt: skip

    def _contexts(self, generation: int, parts: "_Parts") -> dict[int, bytes]:
        """Where each rank of our shard position stood as the step began."""
        microbatches = self._session.runtime.microbatches
        top = microbatches[0].top.context if microbatches else None
        mine = {"context": top.pack() if top is not None else b""}
        assert self._booth is not None, "just used"
        said = gather(parts.fabric, self._booth.channel, generation, mine)
        return {rank: one["context"] for rank, one in said.items()}

    def _again(self, slot: int, contexts: dict[int, bytes], parts: "_Parts") -> int:
        """Compute all microbatches of `slot` once more; what that shows."""
        session, actor = self._session, self._session.impersonator
        rank = parts.layout.replicas[slot][parts.layout.place(session.env.rank)[1]]
        context, mine = contexts.get(rank), session.runtime.microbatches[0].top.context
        if not context or mine is None or not session.makeup.exact:
            return UNTOLD
        odd = LostRank(rank, apart=session.runtime.apart_from(rank))
        odd.learn(Context.unpack(context), mine)
        kept, actor.lost[rank] = parts.strategy.set_aside(), odd
        try:
            return SPOILT if all(self._each_finite(odd, parts.strategy)) else SAME
        except NotReplayable:
            return UNTOLD
        finally:
            parts.strategy.put_back(kept)
            del actor.lost[rank]

    def _each_finite(self, odd: LostRank, strategy: Strategy) -> Iterator[bool]:
        """Whether each microbatch of `odd` has finite gradients. Raises NotReplayable."""
        session, actor = self._session, self._session.impersonator
        for microbatch in session.runtime.microbatches:
            top, points = microbatch.top.context, actor.captures.points
            assert top is not None, "captured"
            done = actor.execute(odd.rank, odd.at(top.point, points), session.step, microbatch)
            yield finite(strategy.accumulators())
            after = None if done.after is None else actor.captures.at(done.after.point)
            if done.after is not None and after is not None:
                odd.learn(done.after, after)


class _Parts:
    """What is there once a session protects."""

    __slots__ = ("fabric", "layout", "strategy")

    def __init__(self, fabric: Fabric, layout: Layout, strategy: Strategy) -> None:
        self.fabric, self.layout, self.strategy = fabric, layout, strategy
