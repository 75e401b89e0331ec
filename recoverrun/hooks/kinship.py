"""Survivors tell each other where the random streams of lost ranks stand (`heritage`).

A rank that evaluates the model between steps draws numbers that others do not draw, and can no
longer tell their streams from its own. So in every step of a run that has lost slots, those who are
sure say what they know before anybody acts as a lost rank.

All survivors must enter, or none. They do so between two commits in one generation, and in the
first step of a generation once they are told to redo it: then all wait at its commit point. One
that has heard of a newer view stays away, and those who wait for it are woken by the same view.
"""

from typing import TYPE_CHECKING, Any

from ft_collectives.faults import Superseded
from recoverrun.hooks import rehearsal
from recoverrun.hooks.rng import CPU_BYTES, Streams

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session


class Kinship:
    """Keeps in which generation the last step was committed: then all members know all lost."""

    def __init__(self) -> None:
        self._committed = 0
        self._redone = 0

    def committed(self, generation: int) -> None:
        self._committed = generation

    def agree(self, session: "Session") -> None:
        """At the commit point, before lost microbatches are shared out."""
        machine = session.machine
        assert machine is not None, "protected"
        view = machine.view
        if view.generation != self._committed:
            return
        if len(view.live) < len(machine.layout.slots):
            self._tell(session, view.generation)
        else:
            session.crossing.look(session, view.generation)

    def redo(self, session: "Session") -> None:
        """About to do what a decision has dealt out, or to reduce in its generation."""
        machine = session.machine
        assert machine is not None, "protected"
        planned_in = machine.planned_in  # read once: another thread may hear of a newer view
        if machine.plan is None or machine.surprised or self._redone == planned_in:
            return
        self._redone = planned_in
        session.makeup.absorb(session.step)
        self._tell(session, planned_in)

    def _tell(self, session: "Session", generation: int) -> None:
        fabric = session.fabric
        assert fabric is not None, "protected"
        if session.promise != "exact-samples":
            return
        heirs = session.impersonator.heritage
        present = {rank: heir for rank, heir in heirs.items() if heir.stands_at(session.step)}
        known = {
            str(rank): _packed(heir.theirs.streams) for rank, heir in present.items() if heir.sure
        }
        try:
            said = rehearsal.gather(fabric, session.booth.channel, generation, known)
        except Superseded:
            return  # whoever is not sure now will say so
        for rank, heir in present.items():
            words = [one[str(rank)] for _, one in sorted(said.items()) if str(rank) in one]
            most = max((sum(word[-1]) for word in words), default=0)
            words = [word for word in words if sum(word[-1]) == most]  # its deputy knows best
            if any(word != words[0] for word in words):
                heir.sure = False  # ranks draw differently within their steps: nobody knows
            elif words and (not heir.sure or sum(heir.theirs.streams.alone) < most):
                heir.told(_unpacked(words[0], heir.theirs.streams))


def _packed(streams: Streams) -> list[Any]:
    return [streams.torch_cpu, list(streams.torch_cuda), list(streams.alone)]


def _unpacked(packed: list[Any], known: Streams) -> Streams:
    cpu, cuda, alone = packed
    assert len(cpu) == CPU_BYTES, f"{len(cpu)} bytes are no stream"
    streams = Streams(torch_cpu=cpu, torch_cuda=tuple(cuda), python=known.python, numpy=known.numpy)
    return streams.with_alone(alone)
