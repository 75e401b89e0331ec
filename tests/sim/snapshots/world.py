"""One simulated history of snapshots: production machines of keepers and coordinator, with symbols
for memory, a network that loses and repeats, and processes that are killed at any moment.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rendezvous.coordinator.parity_circle import ToExchanges
from rendezvous.coordinator.snapshots import Effect, SnapshotBook, ToKeepers
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Circle, Exchanging, Holding, Order
from rendezvous.snapshots import restore_plan
from rendezvous.snapshots.identity import NONE, SnapshotId
from tests.sim.engine import Engine
from tests.sim.snapshots.book import Book
from tests.sim.snapshots.exchanges import Wire
from tests.sim.snapshots.memory import Numbers
from tests.sim.snapshots.node import Node
from tests.sim.snapshots.plan import BOOT_S, Fault, Plan, draw, draw_replicated, draw_returning
from tests.sim.snapshots.replicas import Replicas
from tests.sim.snapshots.worker import Worker
from tests.sim.violation import Violation, demand

DETECT_S, JOIN_S = 0.02, 0.1
FETCH_AGAIN_S = 0.1
MOST_CALLS = 400_000
CHECKED = 3  # of so many calls one is followed by a look at all memory: that takes most of the time


@dataclass(slots=True)
class Outcome:
    plan: Plan
    violation: Violation | None
    coverage: Counter[str]
    lines: list[str] = field(default_factory=list)


class World:
    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.engine = Engine(plan.seed)
        self.world = plan.nodes * plan.nproc
        self.coverage: Counter[str] = Counter()
        self.lines: list[str] = []
        self._verbose = verbose
        self._numbers = Numbers()
        self._names = 0
        self._ending = False
        self._deaf: dict[str, float] = {}
        self._stuck: dict[int, float] = {}  # rank -> for how long its process outlives its end
        self._steps = self._healed_steps = 0
        self._healed = NONE
        self._wire = Wire(self.engine, self._delay_s, plan.loss, plan.duplicate)
        self.nodes = [self._node(place) for place in range(plan.nodes)]
        level = min(plan.parity, plan.nodes - 1)
        self.book = Book(self.world, level, lambda: self.nodes)
        self.machine = SnapshotBook(plan.parity)
        self._said = NONE  # safe, by this coordinator in this attempt
        self.attempt = 0
        self.workers: dict[int, Worker] = {}
        self._replicas = Replicas(self.world, plan.replicas, self.engine)
        self._current = 0  # the step that all are in
        self._invited = False  # lost replicas may come back
        self._known_at = 0.0  # when all know of the newest loss
        self._restored: SnapshotId | None = None  # what all began from
        self._begin(None)

    def run(self) -> Outcome:
        for fault in self.plan.faults:
            self.engine.at(fault.at_s, self._strike, fault)
        self.engine.at(self.plan.chaos_s, self._heal)
        violation = None
        try:
            while self.engine.now < self.plan.chaos_s + self.plan.quiet_s and self.engine.run_one():
                demand(self.engine.calls < MOST_CALLS, "SNAP-L", "the history does not end")
                if self.engine.calls % CHECKED == 0:
                    self.book.check()
            demand(self.book.safe > self._healed, "SNAP-L", f"since {self._healed} none is safe")
            demand(self._steps > self._healed_steps, "SNAP-4", "no step is done any more")
        except Violation as found:
            violation = found
        except (AssertionError, ValueError, KeyError, IndexError) as crash:
            # A machine refuses to go on: its own assertion is one more checker.
            violation = Violation("assert", f"{type(crash).__name__}: {crash}")
            violation.__traceback__ = crash.__traceback__
        return Outcome(self.plan, violation, self.coverage, self.lines)

    # --------------------------------------------------------------------------- the job

    def _node(self, place: int) -> Node:
        self._names += 1
        ranks = range(place * self.plan.nproc, (place + 1) * self.plan.nproc)
        return Node(
            f"n{self._names}", ranks, self.engine, self._numbers, self.world, self.plan.sum_s,
            self._from_launcher, self._wire if self.plan.parity else None,
        )  # fmt: skip

    def _begin(self, restored: SnapshotId | None) -> None:
        """All launchers are here, and start their workers."""
        self._ending, self._restored, self._invited = False, restored, False
        self._said = NONE
        self.book.began(self.attempt, restored)
        self._replicas.begin()
        ranks = {node.name: node.ranks for node in self.nodes}
        self._note(self.machine.begin(self.attempt, ranks, restored, self.engine.now))
        for node in self.nodes:
            node.begin(self.attempt, restored or NONE)
            for rank in node.ranks:
                number = incarnation(self.attempt, 0)
                self.workers[rank] = Worker(
                    rank, number, self.world, node, self.engine, self.plan.every
                )
        self._standing: set[int] = set()
        for worker in self.workers.values():
            self.engine.after(BOOT_S, self._stand, worker, restored)

    def _stand(self, worker: Worker, restored: SnapshotId | None) -> None:
        """It has its state, and waits for the others."""
        if not worker.alive:
            return
        if restored is not None:
            memory = worker.node.fetch(worker.rank, worker.incarnation, restored)
            if memory is None:
                self.engine.after(FETCH_AGAIN_S, self._stand, worker, restored)
                return
            self.book.restored(worker.rank, restored, memory)
            worker.step = worker.begun_at = restored.step
            self.coverage["restored"] += 1
        self._standing.add(worker.rank)
        if len(self._standing) == self.world:
            self._step(self.attempt, worker.step)

    def _step(self, attempt: int, step: int) -> None:
        """All begin a step, and end it together."""
        if attempt != self.attempt or self._ending:
            return
        self._current = step
        if self._invited and self._replicas.gone and self.engine.now > self._known_at:
            self._come_back(step)
        for worker in self._replicas.members(self.workers):
            late_s = self.plan.step_s * 0.3 * self.engine.rng.random()
            self.engine.after(late_s, self._top, worker, step)
        self.engine.after(self.plan.step_s, self._commit, attempt, step)

    def _top(self, worker: Worker, step: int) -> None:
        if worker.alive and not self._ending:
            worker.top(step, self.plan.step_s / 2)

    def _commit(self, attempt: int, step: int) -> None:
        if (attempt, step) != (self.attempt, self._current) or self._ending:
            return
        members = self._replicas.members(self.workers)
        if not all(worker.alive for worker in members):
            return  # they wait for each other until it is known who is lost
        for worker in members:
            if self.plan.replicas == 1 or self.engine.chance(0.5):  # else as the next step begins
                worker.fence()
        self._steps += 1
        self.coverage["steps"] += 1
        self._step(attempt, step + 1)

    # --------------------------------------------------------------------------- losses

    def _lost(self, step: int) -> None:
        """The coordinator knows of a loss: a replica survives it, or the attempt is over."""
        if self._ending:
            return
        if self._replicas.survive(self.workers, self._delay_s):
            self.coverage["survived"] += 1
            self._say(f"without ranks {sorted(self._replicas.gone)} from step {step} on")
            if self.plan.returns:
                self.engine.after(BOOT_S, self._invite, self.attempt)
            self._known_at = self.engine.now + 4 * self.plan.delay_s
            redone_s = 4 * self.plan.delay_s + self.plan.step_s
            self.engine.after(redone_s, self._commit, self.attempt, self._current)
            return
        self._ending = True
        self.coverage["none left"] += bool(self._replicas.gone)
        self.machine.exited(step)
        granted = self.machine.grant()
        self.coverage["granted" if granted else "refused"] += 1
        self.machine.end(self.engine.now)
        for worker in self.workers.values():
            for_s = self._stuck.pop(worker.rank, 0.0)
            if for_s and worker.alive:
                self.coverage["stuck"] += 1
                worker.scribble(self.engine.now + for_s, self.plan.step_s)
            else:
                worker.die()
        self.engine.after(JOIN_S, self._form)

    def _check_knowledge(self) -> None:
        """Once it was said that a snapshot is safe, the same coordinator goes back to no older one,
        or none, as long as the nodes are there, whatever comes late.
        """
        if not all(node.alive for node in self.nodes):
            return
        newest = self.machine.newest or NONE
        demand(newest >= self._said, "SNAP-1", f"{newest} where {self._said} was safe")

    def _invite(self, attempt: int) -> None:
        """Fresh processes are ready, and have their places at the top of the next step."""
        self._invited |= attempt == self.attempt

    def _come_back(self, step: int) -> None:
        self._invited = False
        self.coverage["came back"] += 1
        gone = [place for place, node in enumerate(self.nodes) if not node.alive]
        for place in gone:
            self.nodes[place] = self._node(place)
            self.nodes[place].begin(self.attempt, self._restored or NONE)
        if gone:
            self.coverage["on another node"] += 1
            self.book.ranks_set(step)
            self._said = NONE
            self._done(self.machine.set_ranks({node.name: node.ranks for node in self.nodes}))
        came, birth = self._replicas.come()
        self._say(f"ranks {sorted(came)} come back at the top of step {step}")
        number = incarnation(self.attempt, birth)
        for node in self.nodes:
            for rank in came.intersection(node.ranks):
                self.workers[rank] = Worker(
                    rank, number, self.world, node, self.engine, self.plan.every
                )
        for worker in self.workers.values():
            worker.come(min(came), step)

    def _form(self) -> None:
        self.nodes = [
            node if node.alive else self._node(place) for place, node in enumerate(self.nodes)
        ]
        joined = [(len(node.ranks), node.holding.held, node.holding.shares) for node in self.nodes]
        self.attempt += 1
        found = restore_plan.plan(joined)
        self._say(f"attempt {self.attempt} from {found}")
        self.coverage["from line 1" if found is None else "went back"] += 1
        self._begin(found)

    # --------------------------------------------------------------------------- messages

    def _from_launcher(self, name: str, message: Holding | Exchanging) -> None:
        if self._arrives(name):
            for _ in range(2 if self.engine.chance(self.plan.duplicate) else 1):
                self.engine.after(self._delay_s(), self._hear, name, message)

    def _hear(self, name: str, message: Holding | Exchanging) -> None:
        effects: list[Effect]
        if isinstance(message, Exchanging):
            effects = self.machine.exchange(name, message)
        else:
            effects = self.machine.hear(name, message, self.engine.now)
            self._check_knowledge()
        self._done(effects)

    def _done(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Record():
                    self._note([effect])
                    self.book.noted(effect)
                    if effect.event == "snapshot.safe":
                        self._said = self.machine.safe
                case ToKeepers(message=keep, launcher=launcher):
                    if keep.order[1]:  # else it is what all went back to, however safe that is
                        self.book.ordered(keep.order[0], keep.order[2])
                    self._spread(launcher, self._obey, keep.order)
                case ToExchanges(message=circle, launcher=launcher):
                    self._spread(launcher, self._join, circle)

    def _spread(self, launcher: str, call: Callable[..., None], what: object) -> None:
        for node in self.nodes:
            told = not launcher or launcher == node.name
            if told and node.alive and self._arrives(node.name):
                self.engine.after(self._delay_s(), call, node, what)

    def _join(self, node: Node, circle: Circle) -> None:
        if node.alive and not self._ending:
            place = next(n for n, one in enumerate(self.nodes) if one is node)
            node.join(replace(circle, node=place))

    def _obey(self, node: Node, order: Order) -> None:
        if node.alive and not self._ending:  # else its launcher has no workers
            node.obey(order)

    def _arrives(self, name: str) -> bool:
        deaf = self._deaf.get(name, 0.0) > self.engine.now
        return not deaf and not self.engine.chance(self.plan.loss)

    def _delay_s(self) -> float:
        return self.plan.delay_s * self.engine.rng.uniform(0.5, 3.0)

    # --------------------------------------------------------------------------- faults

    def _strike(self, fault: Fault) -> None:
        self._say(f"{fault}")
        self.coverage[fault.kind] += 1
        worker = self.workers[fault.target]
        node = next(one for one in self.nodes if fault.target in one.ranks)
        match fault.kind:
            case "worker":
                self._kill([worker])
            case "all":
                self._kill(list(self.workers.values()))
            case "keeper":
                node.kill_keeper()
            case "stall":
                if node.keeper is not None:
                    node.keeper.stalled_until = self.engine.now + fault.for_s
            case "stuck":
                self._stuck[fault.target] = fault.for_s
            case "deaf":
                self._deaf[node.name] = self.engine.now + fault.for_s
            case "node":
                self._lose(node)
            case "two":
                place = self.nodes.index(node)
                self._lose(node)
                self._lose(self.nodes[(place + 1) % len(self.nodes)])
            case "exchange":
                node.kill_exchange()
            case "coordinator":
                self._take_over()

    def _lose(self, node: Node) -> None:
        if node.alive:
            node.die()
            self.book.lost_node(self.nodes.index(node))
            self.machine.lose(node.name)
            self._kill([self.workers[rank] for rank in node.ranks])

    def _kill(self, workers: list[Worker]) -> None:
        if self._ending:
            return
        step = max(worker.step for worker in workers)
        for worker in workers:
            worker.die()
        self.engine.after(DETECT_S, self._lost, step)

    def _take_over(self) -> None:
        """Another coordinator: it knows what all were told as the attempt began, and asks."""
        if self._ending:
            return
        self.machine, self._said = SnapshotBook(self.plan.parity), NONE
        ranks = {node.name: node.ranks for node in self.nodes}
        self.machine.begin(self.attempt, ranks, self._restored, self.engine.now)
        for node in self.nodes:
            if node.alive:
                self.engine.after(self._delay_s(), self._retell, node)

    def _retell(self, node: Node) -> None:
        self._from_launcher(node.name, node.holding)
        if node.exchange is not None:
            self._from_launcher(node.name, node.exchange.standing)

    def _heal(self) -> None:
        self._healed, self._healed_steps = self.book.safe, self._steps
        self._deaf.clear()
        self._wire.loss = 0.0
        workers = list(self.workers.values())
        if self.plan.returns:
            return  # whoever is lost comes back
        if self.plan.replicas > 1 and not all(worker.alive for worker in workers):
            self._kill(workers)  # nobody takes snapshots any more, until all begin again

    # --------------------------------------------------------------------------- the trace

    def _note(self, records: list[Record]) -> None:
        for record in records:
            self.coverage[record.event] += 1
            self._say(f"{record.event} {dict(record.fields)}")

    def _say(self, words: str) -> None:
        if self._verbose:
            self.lines.append(f"{self.engine.now:8.3f} {words}")


def simulate(
    seed: int, *, verbose: bool = False, replicated: bool = False, returning: bool = False
) -> Outcome:
    """With one replica, or `replicated`, or `returning`: replicas come back."""
    plan = draw_replicated(seed) if replicated else draw(seed)
    return World(draw_returning(seed) if returning else plan, verbose=verbose).run()
