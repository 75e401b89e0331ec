"""How another coordinator goes on where one was lost: from what the launchers remember.

A coordinator keeps nothing that its launchers could not tell again. Each launcher remembers what
its workers have said about themselves and the newest that they were told (`Memory`). The successor
takes these statements from all members of its configuration, begins a generation of its own, and
gathers: the same path as after any loss. A step in flight is neither lost nor done twice, because
survivors report what they hold, and nothing of an older generation counts any more.

Generations of different coordinators never meet: each term has numbers of its own. A launcher
that has told its successor what it knows takes nothing from the predecessor any more, so what the
successor begins with cannot change behind its back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rendezvous.coordinator.coordinator import Coordinator, NodeLost, Received, Resumed, Tick
from rendezvous.coordinator.fence import message_rank
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.arrival_messages import Ready, StartAgain
from rendezvous.protocol.effects import Effect, ToRank
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
    View,
)

TERM_GENERATIONS = 1000
"""A coordinator that has used up its numbers has to ask for another term."""

STEPS_KEPT = 16
"""Committed steps of each rank that are told again. The predecessor may have waited for a word of a
rank about any of them, and that rank be lost since: steps are finished while words are under way.
"""

RETOLD = (
    Committed, Topology, Verdict, Farewell, Overdue, Exited, ContextBuffer, Broken, Discord, View,
    Decision, StartAgain,
)  # fmt: skip
"""What a standing is made of."""

Standing = tuple[Message, ...]
"""What one launcher remembers, oldest first."""


def first_generation(term: int) -> int:
    """The first generation of the coordinator whose term has this number."""
    return (term - 1) * TERM_GENERATIONS + 1


class Memory:
    """What one launcher could tell another coordinator about the workers of its node."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, int], Message] = {}  # the newest of each kind and rank
        self._steps: dict[tuple[int, int], Committed] = {}  # by rank and step
        self._views: dict[int, View] = {}  # by generation
        self._decisions: dict[tuple[int, int], Decision] = {}  # by generation and step
        self._newest: dict[int, int] = {}  # rank -> incarnation of its newest process
        self._starts: dict[tuple[int, ...], StartAgain] = {}  # the newest of each replica

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
        return (*views, *decisions, *starts, *facts, *steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """What the successor finds: its term, and the nodes that did not come with it."""

    term: int
    world: tuple[int, ...]
    policy: RecoveryPolicy
    # Nodes not in the configuration: name, ranks, why.
    lost: tuple[tuple[str, tuple[int, ...], str], ...]
    reason: str  # for a new generation where nobody is lost


def new_coordinator(
    vacancy: Vacancy, standings: Iterable[Standing], now: float
) -> tuple[Coordinator, list[Effect]]:
    """The coordinator of a new term, and what it wants done first."""
    told = [message for standing in standings for message in standing]
    coordinator = Coordinator(world=vacancy.world, policy=vacancy.policy)
    _take_over(coordinator, vacancy, told)
    coordinator.resuming = True
    effects: list[Effect] = []
    for message in _of(told, Topology, Verdict, Committed, ContextBuffer, Farewell, Overdue):
        # Views in answer to these would be of a generation that nobody has begun.
        answers = coordinator.step(Received(message=message), now)
        effects += [effect for effect in answers if not isinstance(effect, ToRank)]
    for start in told if vacancy.policy.returns and coordinator.members.layout else ():
        if isinstance(start, StartAgain):
            coordinator.arrivals.revivals.remember(start, now)
    for view in _views(told):  # now: what a rank promised before it was lost is promised still
        coordinator.fence.admit(view.joined, view.generation)
    for message in _of(told, Exited):
        ended = isinstance(message, Exited) and message.code == 0
        if ended or message_rank(message) not in coordinator.members.live_ranks:
            effects += coordinator.step(Received(message=message), now)
    newest = _newest(_views(told))
    if newest is not None and vacancy.policy.returns:
        coordinator.arrivals.first_step.adopt(newest.joined, newest.from_step, now)
    before = coordinator.generation
    # Of all at once: nobody asks what one who is gone has promised, and nobody has been told.
    gone = {rank for _, ranks, _ in vacancy.lost for rank in ranks}
    coordinator.members.gone |= gone
    coordinator.arrivals.lose_node(gone)
    for name, ranks, why in vacancy.lost:
        # Those whom the predecessor has missed already are in no view any more.
        if coordinator.members.live_ranks.intersection(ranks):
            node = NodeLost(node=name, ranks=ranks, reason=why)
            effects += coordinator.step(node, now)
    if coordinator.generation == before:
        effects += coordinator.step(Resumed(reason=vacancy.reason), now)
    for message in _of(told, Exited, Broken, Discord):
        effects += coordinator.step(Received(message=message), now)
    coordinator.resuming = False
    return coordinator, effects + coordinator.step(Tick(), now)


def _take_over(coordinator: Coordinator, vacancy: Vacancy, told: Sequence[Message]) -> None:
    """Begin with the newest view that any member has been told."""
    views = _views(told)
    newest = _newest(views)
    members = coordinator.members
    members.generation = first_generation(vacancy.term) - 1
    assert newest is None or newest.generation <= members.generation, (
        f"INV-2: term {vacancy.term} begins below generation {newest}"
    )
    if newest is not None:
        members.live_ranks = set(newest.live_ranks)
        members.gone = set(vacancy.world) - members.live_ranks
    for view in views:
        coordinator.book.open(view.generation, view.live)
        coordinator.book.join(view.joined, view.from_step)
    for message in told:
        if isinstance(message, Decision):
            coordinator.book.decide(message, coordinator.now)
    steps = [message.step for message in told if isinstance(message, Committed)]
    # Nothing is known of older steps: their lines are in the journal of the predecessor.
    coordinator.book.written = min(steps, default=0) - 1
    for message in told:
        # All of them before any line is written: it would not wait for who was away since.
        if isinstance(message, Committed):
            coordinator.book.enter(message, coordinator.now, live=len(members.live_ranks))


def _views(told: Iterable[Message]) -> list[View]:
    return [message for message in told if isinstance(message, View)]


def _newest(views: Iterable[View]) -> View | None:
    return max(views, key=lambda view: view.generation, default=None)


def _of(told: Iterable[Message], *kinds: type[Message]) -> list[Message]:
    """The messages of these kinds, kind by kind."""
    kept = list(told)
    return [message for kind in kinds for message in kept if isinstance(message, kind)]
