"""One simulated history: the production machines, a network, faults, and the checkers' book."""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from ft_collectives.step.step_events import Effect, Ended, Event
from rendezvous.coordinator.coordinator import Coordinator, Received, Tick
from rendezvous.protocol.effects import Effect as Wish
from rendezvous.protocol.effects import KillRanks, StartRanks, StopJob, ToRank
from rendezvous.protocol.messages import Committed, Farewell, Message, Report, Stop, Topology
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.sim.book import Book
from tests.sim.engine import Engine
from tests.sim.faults import Faults
from tests.sim.first_process import FirstProcess
from tests.sim.life import Life
from tests.sim.network import Network
from tests.sim.plan import Plan, draw_any
from tests.sim.plane import Key, Plane
from tests.sim.rare_paths import RarePaths
from tests.sim.suspects import Suspects
from tests.sim.takeover import Line, Takeover
from tests.sim.violation import Violation, demand
from tests.sim.worker import Worker

STEP_S = 40.0
"""So long a step may take once the network has healed, beyond its microbatches, and so long the end
of the job after the last one.
"""

MOST_CALLS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    plan: Plan
    stop: Stop | None
    violation: Violation | None
    digest: str  # of everything that happened, in order
    now: float
    calls: int
    coverage: Counter[str]
    lines: tuple[str, ...]


class History:
    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.verbose = verbose
        self.engine = Engine(plan.seed)
        self.book = Book(plan)
        self.network = Network(self.engine, plan)
        self.coverage: Counter[str] = Counter()
        self.rare_paths = RarePaths(self.coverage)
        self.lines: list[str] = []
        self.told: list[tuple[float, str, str, dict[str, object]]] = []
        self.workers: dict[int, Worker] = {}
        self.plane = Plane(
            self.engine,
            collective_s=plan.collective_s,
            split=plan.split,
            shown=plan.shown,
            members=self.workers,
            on=self.on,
        )
        self.workers.update({rank: FirstProcess(self, rank) for rank in plan.world})
        self.coordinator = Coordinator(world=plan.world, policy=plan.policy)
        self.takeover = Takeover(self)
        self.suspects = Suspects()
        self.stop: Stop | None = None
        self.tick_at = -1.0
        self.sent: Counter[int] = Counter()  # messages by and to each rank
        self.faults = Faults(self)
        self.life = Life(self)
        self.told_by_kind: Counter[tuple[str, int]] = Counter()
        self._hash = hashlib.blake2b(digest_size=8)

    # --------------------------------------------------------------------------- running

    def run(self) -> Outcome:
        violation: Violation | None = None
        try:
            self._run()
        except Violation as broken:
            violation = broken
        except (AssertionError, ValueError, KeyError, IndexError) as crash:
            # A machine (or the model) refuses to go on: its own assertion is one more checker.
            violation = Violation("assert", f"{type(crash).__name__}: {crash}")
            violation.__traceback__ = crash.__traceback__
        if violation is not None:
            self.trace("sim.violation", str(violation))
        self.coverage += self.plane.coverage
        return Outcome(
            plan=self.plan,
            stop=self.stop,
            violation=violation,
            digest=self._hash.hexdigest(),
            now=self.engine.now,
            calls=self.engine.calls,
            coverage=self.coverage,
            lines=tuple(self.lines),
        )

    def _run(self) -> None:
        for rank in self.plan.world:
            self.on(rank, self.engine.jitter(0.02), self.workers[rank].start)
        self.faults.begin()
        microbatches = self.plan.replicas * max(self.plan.counts)
        bound_s = STEP_S + 3 * microbatches * self.plan.microbatch_s
        newest, since = self.book.committed, self.plan.heal_at
        while self.stop is None and self.engine.run_one():
            now = self.engine.now
            if self.book.committed != newest:
                newest, since = self.book.committed, max(now, self.plan.heal_at)
            if now >= since + bound_s:
                raise Violation("INV-6", f"nothing new for {now - since:.0f} s: {self._standing()}")
            if self.engine.calls >= MOST_CALLS:
                raise Violation("storm", f"{MOST_CALLS} calls by {now:.1f} s")
        if self.stop is None:
            raise Violation("INV-6", f"nothing happens any more: {self._standing()}")
        self.book.ending(self.stop)
        self._bounded()

    def _standing(self) -> str:
        machines = [
            worker.machine.snapshot()
            for worker in self.workers.values()
            if worker.machine is not None and worker.alive
        ]
        return f"{self.coordinator.snapshot()} {machines}"

    def _bounded(self) -> None:
        """No storm: so many messages a step, a generation, and a half second of waiting."""
        generations = max(self.book.views, default=1)
        shards = self.plan.shards
        most = 40 + 10 * self.plan.steps + 12 * generations * shards + 16 * self.engine.now
        for rank, count in self.sent.items():
            demand(count <= most, "storm", f"{count} messages of rank {rank}, bound {most:.0f}")

    def trace(self, event: str, reason: str, **fields: object) -> None:
        mono = round(self.engine.now, 6)
        self._hash.update(f"{mono} {event} {reason} {fields}\n".encode())
        if self.verbose:
            self.told.append((mono, event, reason, fields))
            line = {
                "v": 1,
                "ts": mono,
                "mono": mono,
                "seq": len(self.lines),
                "node": "sim",
                "ev": event,
                "reason": reason,
                **fields,
            }
            self.lines.append(json.dumps(line, default=str))

    def on(self, rank: int, delay_s: float, call: object, *args: object) -> None:
        """Call into a rank later, unless it is dead by then; a paused one is late."""
        self.engine.after(delay_s, self._guard, self.workers[rank], call, args)

    def _guard(self, worker: Worker, call: object, args: tuple[object, ...]) -> None:
        if not worker.alive:
            return
        if self.engine.now < worker.paused_until:
            self.engine.at(worker.paused_until, self._guard, worker, call, args)
            return
        assert callable(call), f"{call!r} is called"
        call(*args)

    # --------------------------------------------------------------------------- the network

    def send(self, rank: int, message: Message) -> None:
        """A worker says something."""
        self.sent[rank] += 1
        self.takeover.said(rank, message)
        self.book.returns.said(message)
        lost = self.network.loses() or (rank in self.faults.dying and self.engine.chance(0.5))
        if lost:
            self._lose_word(message)
            return
        for delay_s in self.network.delays():
            line = self.takeover.up(rank)
            at = self.network.arrival("up", rank, delay_s)
            self.engine.at(at, self.receive, rank, message, line)

    def introduced(self, topology: Topology) -> None:
        """A worker says this at least once; here only if no view has shown it to be known."""
        self.takeover.said(topology.rank, topology)

    def _lose_word(self, message: Message) -> None:
        self.coverage[f"lost {type(message).__name__}"] += 1
        if isinstance(message, Committed):
            self.book.unheard.add(message.step)
        if isinstance(message, Farewell) and message.step < self.plan.steps:
            # Its process ends without a word while others train: that is a loss.
            slot = self.workers[message.rank].slot
            self.book.faulted.setdefault(slot, message.rank)

    def receive(self, rank: int, message: Message, line: Line) -> None:
        if not self.takeover.reaches(rank, message, line):
            return
        self.book.informed(message)
        self.suspects.told(message, self.workers[rank])
        if isinstance(message, Report) and message.generation < self.coordinator.generation:
            self.coverage["report of an old generation"] += 1
        name = type(message).__name__
        self.trace(
            "sim.deliver",
            f"{name} of rank {getattr(message, 'rank', -1)}",
            **({"message": repr(message)} if self.verbose else {}),
        )
        self.wish(self.coordinator.step(Received(message=message), self.engine.now), message)

    def _tell(self, rank: int, message: Message) -> None:
        """The coordinator says something."""
        self.sent[rank] += 1
        if isinstance(message, View):
            self.book.sent(message, self.engine.now)
        kind = type(message).__name__
        self.told_by_kind[(kind, rank)] += 1
        dropped = (kind, self.told_by_kind[(kind, rank)], rank) in self.plan.drops
        if dropped or self.network.loses():
            self._lose_word(message)
            return
        line = self.takeover.down(rank)
        for delay_s in self.network.delays():
            self.engine.at(
                self.network.arrival("down", rank, delay_s), self._hear, rank, message, line
            )

    def _hear(self, rank: int, message: Message, line: Line) -> None:
        if not self.takeover.heard(rank, message, line):
            return
        if isinstance(message, View):
            self.book.returns.heard(rank, message)
        self.on(rank, 0.0, self.workers[rank].hear, message)

    # --------------------------------------------------------------------------- the coordinator

    def wish(self, effects: list[Wish], cause: Message | None) -> None:
        self.suspects.wished(effects)
        announced = any(isinstance(e, Record) and e.event == "decision.make" for e in effects)
        for effect in effects:
            match effect:
                case ToRank(rank=rank, message=message):
                    self.rare_paths.told(message, cause, announced)
                    self._tell(rank, message)
                case KillRanks(kill=kill):
                    self.trace("worker.kill", kill.reason, ranks=list(kill.ranks))
                    self.life.order(kill)
                case StartRanks(start=start):
                    self.life.start_again(start)
                case StopJob(stop=stop):
                    self.stop = stop
                    self.book.stopping()
                    self.coverage["stop before the start"] += self.book.early
                    self.trace(
                        "run.end", stop.reason, exit_code=stop.exit_code, root_rank=stop.root_rank
                    )
                case Record(event=event, reason=reason, fields=fields):
                    self.trace(event, reason, **fields)
                    self.rare_paths.record(effect)
                    self.book.record(effect, self.engine.now)
        self._arm()

    def _arm(self) -> None:
        deadline = self.coordinator.deadline()
        if deadline is not None and deadline != self.tick_at:
            self.tick_at = deadline
            self.engine.at(deadline, self._tick, deadline)

    def _tick(self, deadline: float) -> None:
        if self.tick_at == deadline and not self.takeover.vacant:
            self.tick_at = -1.0
            before = self.coordinator.deadline()
            self.wish(self.coordinator.step(Tick(), self.engine.now), None)
            after = self.coordinator.deadline()
            spins = before is not None and after == before and after <= self.engine.now
            demand(not spins, "storm", f"the deadline {after} stays in the past")

    # --------------------------------------------------------------------------- watching

    def point(self, rank: int, step: int, name: str) -> None:
        self.trace("sim.point", f"rank {rank} step {step} {name}")
        self.faults.point(rank, step, name)

    def fed(self, worker: Worker, event: Event, effects: list[Effect]) -> None:
        assert worker.machine is not None, "it was fed"
        generation = worker.machine.view.generation
        self.book.fed(worker.rank, generation, event, effects, self._before(worker, event))
        self.book.led |= isinstance(event, Ended) and worker.leads
        self.rare_paths.fed(event, effects, worker.machine.state)

    def _before(self, worker: Worker, event: Event) -> int:
        """The generation that the worker's own shell had heard of when it fed the event."""
        assert worker.view is not None, "machines begin with a view"
        return worker.view.generation

    def applied(self, worker: Worker, step: int, keys: tuple[Key, ...]) -> None:
        sums = [self.plane.history[key] for key in keys]
        self.trace("sim.apply", f"rank {worker.rank} applies step {step}")
        quiet = (not self.plan.loss or self.network.healed) and not self.network.clears
        self.book.applied(worker.rank, step, sums, self.network.mean_s if quiet else None)
        dead = [
            rank
            for key in keys
            for rank in self.plane.history[key].members
            if not self.workers[rank].alive
        ]
        self.coverage["sum of a lost replica applied"] += bool(dead)

    def asked(self, worker: Worker, donor: Worker) -> None:
        """A newcomer waits for what this member tells it."""
        self.book.returns.asked(worker.rank, donor.rank)

    def received(self, worker: Worker) -> None:
        """A newcomer has its state, and takes its place with it."""
        self.trace("sim.receive", f"rank {worker.rank} has its state")
        self.book.returns.received(worker.rank, worker.step, worker.state, self.book.keys)


def simulate(seed: int, *, verbose: bool = False) -> Outcome:
    return History(draw_any(seed), verbose=verbose).run()
