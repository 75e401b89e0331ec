"""Survivors tell each other where the random streams of lost ranks stand (`heritage`).

A rank that evaluates the model between steps draws numbers that others do not draw, and can no
longer tell their streams from its own. So in every step of a run that has lost slots, those who are
sure say what they know before anybody acts as a lost rank.

All survivors must enter, or none. They do so between two commits in one generation; one that has
heard of a newer view stays away, and those who wait for it are woken by the same view.
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

    def committed(self, generation: int) -> None:
        self._committed = generation

    def agree(self, session: "Session") -> None:
        """At the commit point, before lost microbatches are shared out."""
        machine, fabric = session.machine, session.fabric
        assert machine is not None and fabric is not None, "protected"
        view = machine.view
        degraded = len(view.live) < len(machine.layout.slots)
        settled = view.generation == self._committed and session.promise == "exact-samples"
        if not degraded or not settled:
            return
        heirs = session.impersonator.heritage
        present = {rank: heir for rank, heir in heirs.items() if heir.stands_at(session.step)}
        known = {
            str(rank): _packed(heir.theirs.streams) for rank, heir in present.items() if heir.sure
        }
        try:
            said = rehearsal.gather(fabric, session.booth.channel, view.generation, known)
        except Superseded:
            return  # whoever is not sure now will say so
        for rank, heir in present.items():
            words = [one[str(rank)] for _, one in sorted(said.items()) if str(rank) in one]
            if any(word != words[0] for word in words):
                heir.sure = False  # ranks draw differently within their steps: nobody knows
            elif words and not heir.sure:
                heir.told(_unpacked(words[0], heir.theirs.streams))


def _packed(streams: Streams) -> list[Any]:
    return [streams.torch_cpu, list(streams.torch_cuda)]


def _unpacked(packed: list[Any], known: Streams) -> Streams:
    cpu, cuda = packed
    assert len(cpu) == CPU_BYTES, f"{len(cpu)} bytes are no stream"
    return Streams(torch_cpu=cpu, torch_cuda=tuple(cuda), python=known.python, numpy=known.numpy)
