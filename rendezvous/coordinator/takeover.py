"""The takeover by another coordinator: from what the launchers remember.

A coordinator keeps nothing that its launchers could not tell again (`standing`). The successor
takes these statements from all members of its configuration, begins a generation of its own, and
gathers: the same path as after any loss. A step in flight is neither lost nor done twice, because
survivors report what they hold, and nothing of an older generation counts any more.

Generations of different coordinators never meet: each term has numbers of its own. A launcher
that has told its successor what it knows takes nothing from the predecessor any more, so what the
successor begins with cannot change behind its back.
"""

from collections.abc import Iterable, Sequence

from rendezvous.coordinator.coordinator import Coordinator, NodeLost, Received, Resumed, Tick
from rendezvous.coordinator.fence import message_rank
from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.standing import Standing, Vacancy
from rendezvous.protocol.arrival_messages import StartAgain
from rendezvous.protocol.effects import Effect, ToRank
from rendezvous.protocol.messages import (
    Broken,
    Committed,
    ContextBuffer,
    Decision,
    Discord,
    Exited,
    Farewell,
    Message,
    Overdue,
    Topology,
    Verdict,
)
from rendezvous.protocol.views import View

TERM_GENERATIONS = 1000
"""A coordinator that has used up its numbers has to ask for another term."""


def first_generation(term: int) -> int:
    """The first generation of the coordinator whose term has this number."""
    return (term - 1) * TERM_GENERATIONS + 1


def new_coordinator(
    vacancy: Vacancy, standings: Iterable[Standing], now: float
) -> tuple[Coordinator, list[Effect]]:
    """The coordinator of a new term, and what it wants done first."""
    told = [message for standing in standings for message in standing]
    coordinator = Coordinator(world=vacancy.world, policy=vacancy.policy)
    coordinator.now = now
    _take_over(coordinator, vacancy, told)
    coordinator.resuming = True
    effects: list[Effect] = []
    _hear(coordinator, _of(told, Topology, Verdict), effects)
    effects += _inherited_losses(coordinator, vacancy, told)
    _hear(coordinator, _of(told, Committed, ContextBuffer, Farewell, Overdue), effects)
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
            silent_s = vacancy.silent_s.get(name, 0.0)
            node = NodeLost(node=name, ranks=ranks, reason=why, silent_s=silent_s)
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
    for view in sorted(views, key=lambda view: view.generation):
        members.returned_in.update(dict.fromkeys(view.joined, view.generation))
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


def _hear(coordinator: Coordinator, told: Iterable[Message], effects: list[Effect]) -> None:
    for message in told:
        # Views in answer to these would be of a generation that nobody has begun.
        answers = coordinator.step(Received(message=message), coordinator.now)
        effects += [effect for effect in answers if not isinstance(effect, ToRank)]


def _inherited_losses(
    coordinator: Coordinator, vacancy: Vacancy, told: Sequence[Message]
) -> list[Effect]:
    """The losses that the predecessor saw, and no step has made good since: our book has them."""
    members, layout = coordinator.members, coordinator.members.layout
    if layout is None:
        return []
    away = {rank for _, ranks, _ in vacancy.lost for rank in ranks}
    reached = dict.fromkeys(members.live_ranks - away, 0)
    for message in told:
        if isinstance(message, Committed) and message.rank in reached:
            reached[message.rank] = max(message.generation, reached[message.rank])
    whole = min(reached.values(), default=0)  # all have committed a step in that generation
    ends = [message for message in told if isinstance(message, Exited)]
    left: dict[int, Loss] = {}
    for view in _views(told):
        for rank in view.losses if view.generation > whole else ():
            slot = layout.slot(rank)
            if rank in members.gone and slot not in left:
                among = layout.replicas[slot]
                left[slot] = Loss.of_former(
                    among, ends, vacancy.lost, layout=layout, generation=view.generation,
                    now=coordinator.now,
                )  # fmt: skip
    for loss in left.values():
        coordinator.book.lose(loss)
    return [loss.record(layout, inherited=True) for loss in left.values()]


def _views(told: Iterable[Message]) -> list[View]:
    return [message for message in told if isinstance(message, View)]


def _newest(views: Iterable[View]) -> View | None:
    return max(views, key=lambda view: view.generation, default=None)


def _of(told: Iterable[Message], *kinds: type[Message]) -> list[Message]:
    """The messages of these kinds, kind by kind."""
    kept = list(told)
    return [message for kind in kinds for message in kept if isinstance(message, kind)]
