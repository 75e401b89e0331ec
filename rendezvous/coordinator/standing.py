"""The memory of a launcher about its workers, for a coordinator that goes on where one was lost.

It is what its workers have said about themselves and the newest that they were told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.arrival_messages import Ready, StartAgain
from rendezvous.protocol.messages import (
    Broken,
    Committed,
    ContextBuffer,
    Decision,
    Discord,
    Exited,
    Farewell,
    Hello,
    Message,
    Overdue,
    Topology,
    Verdict,
)
from rendezvous.protocol.snapshot_messages import Holding
from rendezvous.protocol.views import View

STEPS_KEPT = 16
"""Committed steps of each rank that are told again. The predecessor may have waited for a word of a
rank about any of them, and that rank be lost since: steps are finished while words are under way.
"""

RETOLD = (
    Committed, Topology, Verdict, Farewell, Overdue, Exited, ContextBuffer, Broken, Discord, View,
    Decision, StartAgain, Holding,
)  # fmt: skip
"""What a standing is made of."""

Standing = tuple[Message, ...]
"""What one launcher remembers, oldest first."""


class Memory:
    """The statements of one launcher to another coordinator about the workers of its node."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, int], Message] = {}  # the newest of each kind and rank
        self._steps: dict[tuple[int, int], Committed] = {}  # by rank and step
        self._views: dict[int, View] = {}  # by generation
        self._decisions: dict[tuple[int, int], Decision] = {}  # by generation and step
        self._newest: dict[int, int] = {}  # rank -> incarnation of its newest process
        self._starts: dict[tuple[int, ...], StartAgain] = {}  # the newest of each replica
        self.holding: Holding | None = None  # the snapshots of this node, which no worker tells

    def said(self, message: Message) -> None:
        """A worker of this node said so, or its end was seen."""
        match message:
            case Hello(rank=rank, incarnation=one) | Ready(rank=rank, incarnation=one):
                self._newest[rank] = max(one, self._newest.get(rank, 0))
            case Committed(rank=rank, step=step):
                self._steps[rank, step] = message
                self._steps.pop((rank, step - STEPS_KEPT), None)
                self._facts.pop((Overdue.__name__, rank), None)  # it has gone on
            case Topology() | Verdict() | Farewell() | Exited() | ContextBuffer() | Broken():
                self._facts[type(message).__name__, message.rank] = message
            case Discord() | Overdue():
                self._facts[type(message).__name__, message.rank] = message
            case Holding():
                self.holding = message
            case _:
                pass  # asked for again, or of no use to anybody else

    def heard(self, message: Message) -> None:
        """A worker of this node, or its launcher, was told so."""
        match message:
            case StartAgain(ranks=ranks, birth=birth):
                known = self._starts.get(ranks)
                if known is None or birth > known.birth:
                    self._starts[ranks] = message
            case View(generation=generation):
                if generation > max(self._views, default=0):
                    self._forget_former(message)
                self._views[generation] = message
                if len(self._views) > STEPS_KEPT:
                    del self._views[min(self._views)]
            case Decision(verdict="redo" | "commit", generation=generation, step=step):
                self._decisions[generation, step] = message
                if len(self._decisions) > STEPS_KEPT:
                    del self._decisions[min(self._decisions)]
            case _:
                pass

    def _forget_former(self, view: View) -> None:
        """Ranks take part again: what is known of their processes before is over.

        Until this is heard they are lost, whoever has been told otherwise: they were not.
        """
        for rank in view.joined:
            newest = self._newest.get(rank, 0)
            for kind in (Exited, ContextBuffer, Farewell, Overdue, Broken, Discord):
                known = self._facts.get((kind.__name__, rank))
                if isinstance(known, Exited | ContextBuffer):
                    former = not newest or known.incarnation < newest
                else:
                    former = getattr(known, "generation", 0) < view.generation
                if former:
                    self._facts.pop((kind.__name__, rank), None)

    def view(self, generation: int) -> View | None:
        """Return what our workers were told of that generation, None if nothing."""
        return self._views.get(generation)

    @property
    def standing(self) -> Standing:
        """All of it; its length does not grow with that of the run."""
        views = (self._views[generation] for generation in sorted(self._views))
        decisions = (self._decisions[key] for key in sorted(self._decisions))
        facts = (self._facts[key] for key in sorted(self._facts))
        steps = (self._steps[key] for key in sorted(self._steps, key=lambda key: key[::-1]))
        starts = (self._starts[ranks] for ranks in sorted(self._starts))
        held = () if self.holding is None else (self.holding,)
        return (*held, *views, *decisions, *starts, *facts, *steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """The start of a successor: its term, and the nodes that did not come with it."""

    term: int
    world: tuple[int, ...]
    policy: RecoveryPolicy
    # Nodes not in the configuration: name, ranks, why.
    lost: tuple[tuple[str, tuple[int, ...], str], ...]
    reason: str  # for a new generation where nobody is lost
    silent_s: Mapping[str, float] = field(default_factory=dict)  # of lost nodes, by name
