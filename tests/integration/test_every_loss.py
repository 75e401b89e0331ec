"""Every set of losses in every phase of a step, for all small jobs: the real machines, no chance.

A world is one in-step machine for each replica and the coordinator. It keeps its own account of
what is really added up: the identities in each accumulator, and in each sum that is applied.
Check 8 of the user experience: the sum of microbatches is constant. That time adds up, too, is in
`test_one_number` and in `test_time_book`, on histories made by chance.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ft_collectives.step.exact_sum import addition_order, partial_sums
from ft_collectives.step.machine import StepMachine
from ft_collectives.step.step_events import (
    Accumulated,
    Apply,
    Break,
    Compute,
    Decided,
    Effect,
    Event,
    Reduce,
    Reduced,
    Send,
    Settled,
    Viewed,
    Vote,
    Voted,
)
from rendezvous.coordinator.coordinator import Coordinator, Received
from rendezvous.protocol.effects import StopJob, ToRank
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Decision, Exited, Message, Topology
from rendezvous.protocol.quota import identities
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import Identity, View
from tests.unit.coordination import verdict

STEPS = 3
STRUCK = 1  # the step of the first loss

Action = tuple[str, int, int]
"""What a rank would do next: kind, step, and a number that says how far it is."""

Limit = Callable[[int, Action], bool]
"""Whether this rank has to stay where it is, before this action."""


def nobody(_rank: int, _action: Action) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Loss:
    """These slots die once nobody can go on under the limit of `phase` in `step`."""

    slots: tuple[int, ...]
    phase: str
    count: int
    step: int

    def limit(self, rank: int, action: Action) -> bool:
        kind, step, number = action
        if step != self.step:
            return step > self.step
        match self.phase:
            case "compute":  # `count` microbatches of its own are done
                return kind == "own" and number >= self.count or kind == "settle"
            case "reduce":  # the first `count` ranks know that all is reduced
                return kind == "reduced" and rank >= self.count
            case "vote":  # the first `count` ranks know that all have voted
                return kind == "voted" and rank >= self.count
            case "redo":  # `count` lost microbatches are made up for by each
                return kind == "redo" and number >= self.count
            case _:  # "between"
                return False


class World:
    def __init__(self, slots: int, microbatches: int) -> None:
        ranks = range(slots)
        self.microbatches = microbatches
        self.layout = Layout(tuple((rank,) for rank in ranks))
        self.coordinator = Coordinator(world=tuple(ranks))
        self.alive = set(ranks)
        self.todo: dict[int, deque[Effect]] = {rank: deque() for rank in ranks}
        self.mail: deque[Message] = deque()
        self.sums: dict[int, list[Identity]] = {rank: [] for rank in ranks}  # accumulators
        self.held: dict[int, Counter[Identity]] = {}
        self.applied: dict[int, list[Counter[Identity]]] = {rank: [] for rank in ranks}
        self.loads: dict[int, list[int]] = {rank: [] for rank in ranks}
        self.redone: Counter[int] = Counter()  # in the present step, by rank
        self.entered: dict[tuple[str, int, int], dict[int, tuple[Any, ...]]] = {}
        self.members: dict[int, tuple[int, ...]] = {}  # of each generation
        view = View(generation=1, live=tuple(ranks), live_ranks=tuple(ranks), losses=())
        self.machines = {r: StepMachine(rank=r, layout=self.layout, view=view) for r in ranks}
        self.tell(Topology(rank=0, generation=1, strategy="ddp", replicas=self.layout.replicas))
        for rank in self.layout.ranks(self.layout.slots):
            self.tell(verdict(rank))

    # ------------------------------------------------------------------------ messages

    def tell(self, message: Message) -> None:
        for effect in self.coordinator.step(Received(message=message), 0.0):
            assert not isinstance(effect, StopJob), effect
            assert not (isinstance(effect, Record) and effect.event == "invariant.break"), effect
            if isinstance(effect, ToRank) and effect.rank in self.alive:
                if isinstance(effect.message, View):
                    self.feed(effect.rank, Viewed(view=effect.message))
                    self.next_of(effect.rank)  # what was under way ends now, too late
                elif isinstance(effect.message, Decision):
                    self.feed(effect.rank, Decided(decision=effect.message))

    def feed(self, rank: int, event: Event) -> None:
        for effect in self.machines[rank].step(event, 0.0):
            if isinstance(effect, Send):
                self.mail.append(effect.message)
            else:
                self.todo[rank].append(effect)

    def kill(self, slots: tuple[int, ...]) -> None:
        self.alive -= set(slots)
        for rank in slots:
            self.todo[rank].clear()
        for rank in slots:
            self.tell(Exited(
                rank=rank, incarnation=0, node="a", code=-9, ours=False, error="", detected_s=0.0
            ))  # fmt: skip

    # ------------------------------------------------------------------------ progress

    def pump(self, limit: Limit) -> None:
        """Go on until nobody can."""
        moving = True
        while moving:
            moving = False
            while self.mail:
                moving = True
                self.tell(self.mail.popleft())
            for rank in sorted(self.alive):
                action = self.next_of(rank)
                if action is not None and not limit(rank, action):
                    moving = self.go(rank, action) or moving

    def next_of(self, rank: int) -> Action | None:
        machine = self.machines[rank]
        step = machine.step_index
        while self.todo[rank] and self.end_late(rank, self.todo[rank][0]):
            self.todo[rank].popleft()
        if self.todo[rank]:
            match self.todo[rank][0]:
                case Compute():
                    return ("redo", step, self.redone[rank])
                case Reduce() as reduce:
                    self.enter(rank, reduce)
                    return ("reduced", step, 0)
                case Vote() as vote:
                    self.enter(rank, vote)
                    return ("voted", step, 0)
                case Apply(step=applied):
                    return ("apply", applied, 0)
                case Break(reason=reason):
                    raise AssertionError(reason)
        if machine.state != "open" or step == STEPS:
            return None
        own = sum(slot == rank for slot, _ in self.sums[rank])
        return ("own", step, own) if own < self.microbatches else ("settle", step, 0)

    def go(self, rank: int, action: Action) -> bool:
        """True if the rank did anything: one that waits for others does not."""
        kind, _, number = action
        if kind == "own":
            self.accumulate(rank, (rank, number))
        elif kind == "settle":
            self.feed(rank, Settled(microbatches=self.microbatches))
        else:
            return self.carry_out(rank)
        return True

    def accumulate(self, rank: int, identity: Identity) -> None:
        self.sums[rank].append(identity)
        self.feed(rank, Accumulated(identity=identity))

    def carry_out(self, rank: int) -> bool:
        effect = self.todo[rank][0]
        match effect:
            case Compute(identities=(identity,)):
                self.redone[rank] += 1
                self.todo[rank].popleft()
                self.accumulate(rank, identity)
            case Reduce(generation=generation):
                held = self.together(rank, effect)
                if held is None:
                    return False
                self.todo[rank].popleft()
                self.held[rank] = Counter(i for one in held.values() for i in one)
                self.feed(rank, Reduced(generation=generation))
            case Vote(generation=generation):
                votes = self.together(rank, effect)
                if votes is None:
                    return False
                self.todo[rank].popleft()
                self.feed(rank, Voted(generation=generation, counts=counts(votes)))
            case Apply():
                self.todo[rank].popleft()
                self.applied[rank].append(self.held.pop(rank))
                self.loads[rank].append(len(self.sums[rank]))
                self.sums[rank] = []
                self.redone[rank] = 0
        return True

    def enter(self, rank: int, effect: Reduce | Vote) -> None:
        """The rank is there; when it hears of the end is another matter."""
        machine = self.machines[rank]
        if isinstance(effect, Reduce):
            self.check_plan(machine)
            self.place(rank, effect)[rank] = tuple(self.sums[rank])
        else:
            self.place(rank, effect)[rank] = effect.ballot
        self.members[effect.generation] = machine.view.live

    def place(self, rank: int, effect: Reduce | Vote) -> dict[int, tuple[Any, ...]]:
        kind, step = type(effect).__name__, self.machines[rank].step_index
        return self.entered.setdefault((kind, effect.generation, step), {})

    def together(self, rank: int, effect: Reduce | Vote) -> dict[int, tuple[Any, ...]] | None:
        """The inputs of all members to a collective, None as long as one of them has not come."""
        given = self.place(rank, effect)
        return given if set(self.members.get(effect.generation, (-1,))) <= given.keys() else None

    def end_late(self, rank: int, effect: Effect) -> bool:
        """True if `effect` is of an older generation: if it ends after all, it changes nothing."""
        machine = self.machines[rank]
        generation = machine.view.generation
        if not isinstance(effect, Reduce | Vote) or effect.generation == generation:
            return False
        given = self.together(rank, effect)
        if given is not None:
            before = machine.snapshot()
            if isinstance(effect, Reduce):
                self.feed(rank, Reduced(generation=effect.generation))
            else:
                self.feed(rank, Voted(generation=effect.generation, counts=counts(given)))
            assert machine.snapshot() == before
        return True

    def check_plan(self, machine: StepMachine) -> None:
        """Each knows what all have, and that it can be added up in canonical order."""
        shares = machine.shares()
        assert set(shares[machine.slot]) == set(self.sums[machine.rank])
        having = [partial_sums(shares[slot]) for slot in machine.view.live]
        order = [term for term, _ in addition_order(having)]
        assert sum(term.stop - term.start for term in order) == self.total

    # ------------------------------------------------------------------------ what must hold

    @property
    def total(self) -> int:
        return len(self.layout.slots) * self.microbatches

    def judge(self, lost_in: int) -> None:
        whole = Counter(identities(self.layout.slots, self.microbatches))
        for rank in self.alive:
            assert self.applied[rank] == [whole] * STEPS, f"rank {rank}"
        for step in range(lost_in + 1, STEPS):
            loads = [self.loads[rank][step] for rank in self.alive]
            assert max(loads) - min(loads) <= 1 and sum(loads) == self.total


def counts(votes: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*votes.values(), strict=True))


def phases(slots: int, microbatches: int) -> Iterator[tuple[str, int]]:
    for count in sorted({0, 1, microbatches}):
        yield "compute", count
    for phase in ("reduce", "vote"):
        for count in sorted({0, 1, slots - 1}):
            yield phase, count
    yield "between", 0


def losses(among: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """Every set of up to `most` of these that leaves one."""
    for count in range(1, min(most, len(among) - 1) + 1):
        yield from itertools.combinations(among, count)


def live_through(slots: int, microbatches: int, *struck: Loss) -> None:
    world = World(slots, microbatches)
    for loss in struck:
        world.pump(loss.limit)
        world.kill(loss.slots)
    world.pump(nobody)

    world.judge(max(loss.step for loss in struck))


SHAPES = [(r, g) for r in range(2, 7) for g in range(1, 7)]
NTH = {2: 1, 3: 1, 4: 1, 5: 5, 6: 17}
"""Of the cases with so many slots, every how many are lived through in each test run."""


def cases(slots: int, microbatches: int) -> list[Loss]:
    return [
        Loss(lost, phase, count, STRUCK)
        for phase, count in phases(slots, microbatches)
        for lost in losses(tuple(range(slots)), slots - 1)
    ]


@pytest.mark.parametrize(("slots", "microbatches"), SHAPES)
def test_any_set_of_losses_in_any_phase(slots: int, microbatches: int) -> None:
    for loss in cases(slots, microbatches)[microbatches % NTH[slots] :: NTH[slots]]:
        live_through(slots, microbatches, loss)


@pytest.mark.matrix
@pytest.mark.parametrize(("slots", "microbatches"), [shape for shape in SHAPES if shape[0] > 4])
def test_all_sets_of_losses_in_all_phases(slots: int, microbatches: int) -> None:
    for loss in cases(slots, microbatches):
        live_through(slots, microbatches, loss)


@pytest.mark.parametrize(("slots", "microbatches"), [(3, 1), (3, 2), (3, 3)])
def test_any_second_loss_during_the_make_up_of_any_first(slots: int, microbatches: int) -> None:
    """In each phase of the step that the first loss struck, and in the next one."""
    seconds = [("redo", count, STRUCK) for count in range(microbatches + 1)]
    seconds += [("reduce", 0, STRUCK), ("vote", 1, STRUCK), ("compute", 1, STRUCK + 1)]
    seconds += [("redo", 0, STRUCK + 1), ("vote", 0, STRUCK + 1), ("between", 0, STRUCK + 1)]
    for phase, count in phases(slots, microbatches):
        for first in losses(tuple(range(slots)), slots - 2):
            left = tuple(slot for slot in range(slots) if slot not in first)
            for second in losses(left, slots):
                for then, done, step in seconds:
                    live_through(
                        slots, microbatches, Loss(first, phase, count, STRUCK),
                        Loss(second, then, done, step),
                    )  # fmt: skip


@pytest.mark.parametrize("slots", [4, 5, 6])
def test_losses_one_by_one_within_a_single_make_up(slots: int) -> None:
    """Down to one replica, each loss after another microbatch made up."""
    orders = list(itertools.permutations(range(slots), slots - 1))
    for first, *rest in orders[:: len(orders) // 24]:
        later = [Loss((slot,), "redo", 1 + n, STRUCK) for n, slot in enumerate(rest)]
        live_through(slots, 2, Loss((first,), "compute", 1, STRUCK), *later)
