"""One simulated history of a job that writes snapshots to disks: it is started again and again,
after power cuts, after its own end by SIGTERM, and with another coordinator. Formation, what is
written, how it is named and what is gone on from are production code, over real directories.

Keepers have in memory what they should (`tests.sim.snapshots`), so a snapshot is safe once a step
with one is done.
"""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rendezvous.coordinator.written_snapshots import WRITE_EVERY_S, WrittenSnapshots
from rendezvous.membership.formation import Formation, Joined, Reply
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.snapshot_messages import Persist, Persisted
from rendezvous.snapshots import restore_plan
from rendezvous.snapshots.identity import NONE, SnapshotId
from tests.sim.engine import Engine
from tests.sim.violation import Violation, demand
from tests.sim.written.book import NOTHING, Book, State
from tests.sim.written.node import Node

MEMORY = Path("/dev/shm")
"""A disk on which nothing is waited for, as each part is synchronised."""

RUNS = 6
TICK_S, DELAY_S = 1.0, 0.2
FAULTS = (
    "power",
    "power",
    "drain",
    "keeper",
    "coordinator",
    "restart",
    "full",
    "disk",
    "unfit",
    "unfit",
)


@dataclass(slots=True)
class Outcome:
    violation: Violation | None
    coverage: Counter[str]
    lines: list[str] = field(default_factory=list)


class World:
    def __init__(self, seed: int, folder: Path) -> None:
        self.engine = Engine(seed)
        rng = self.engine.rng
        self.book = Book()
        self.coverage: Counter[str] = Counter()
        self.lines: list[str] = []
        self._step_s = rng.choice((2.0, 8.0, 40.0))
        self._every = rng.choice((1, 2, 3))
        shared, nproc = rng.random() < 0.4, rng.choice((1, 2))
        self.nodes = [
            Node(f"n{place}", nproc, folder / ("all" if shared else f"n{place}"), self.engine,
                 self._heard)
            for place in range(rng.choice((1, 2, 3)))
        ]  # fmt: skip
        self._shared = shared
        self._states = 0
        self._known: dict[SnapshotId, State] = {}  # of this run
        self._run = 0
        self._life = 0  # of the attempt: what was meant for an earlier one has no effect
        self._over = False

    def history(self) -> Outcome:
        violation = None
        try:
            while self._run < RUNS:
                self._start()
                while not self._over and self.engine.run_one():
                    pass
        except Violation as found:
            violation = found
        return Outcome(violation, self.coverage, self.lines)

    # --------------------------------------------------------------------------- the job

    def _start(self) -> None:
        """All launchers begin."""
        self._run += 1
        self._over, self._draining = False, False
        self._resume = resume = "never" if self.engine.chance(0.2) else "auto"
        for node in self.nodes:
            node.look("never" if resume == "never" else "auto")
            node.full = False
        self.written = WrittenSnapshots()
        self._known.clear()
        formation = Formation(
            nnodes=len(self.nodes), run_id="job", version="1", master_addr="", timeout_s=600.0,
            begun_at=self.engine.now, restore=restore_plan.planned,
            arrange=restore_plan.arranged,
        )  # fmt: skip
        states = self._form(formation, 0)
        self._say(f"run {self._run} ({resume}) from {states}")
        self.coverage["from line 1" if not states else "from the disk"] += 1
        if resume == "auto":
            self.book.began(states)
        last = self._run == RUNS
        kind = "" if last else self.engine.rng.choice(FAULTS)
        self._persisted = self.book.persisted
        over_s = 2.5 * WRITE_EVERY_S if last else self.engine.jitter(0.7 * WRITE_EVERY_S)
        self.engine.after(over_s, self._end if last else self._strike, self._run, kind)
        self.engine.after(TICK_S, self._tick, self._run)

    def _form(self, formation: Formation, attempt: int) -> dict[int, State]:
        """An attempt forms, and begins. What ranks have read from disks."""
        self._formation, self._attempt = formation, attempt
        self._life += 1
        starts: dict[str, Start] = {}
        order = list(self.nodes)
        self.engine.rng.shuffle(order)
        for node in order:
            for effect in formation.step(Joined(node.join(attempt)), self.engine.now):
                if isinstance(effect, Reply) and isinstance(effect.message, Start):
                    starts[effect.incarnation] = effect.message
        self.nodes.sort(key=lambda node: starts[node.name].node_rank)
        self.start = starts[self.nodes[0].name]
        states: dict[int, State] = {}
        for node in self.nodes:
            states |= node.begin(starts[node.name])
        self.safe = restore_plan.read(self.start.restore) or NONE
        self._step = max(0, self.safe.step)
        if states:
            self._known[self.safe] = max(states.values())
        for node in self.nodes:
            node.memory = {one: s for one, s in node.memory.items() if one == self.safe}
        self.engine.after(self._step_s, self._stepped, self._life)
        return states

    def _stepped(self, life: int) -> None:
        """A step is done; perhaps a snapshot of it is safe."""
        if self._over or life != self._life:
            return
        self._step += 1
        self.coverage["steps"] += 1
        if self._step % self._every == 0 or self._draining:
            self._states += 1
            found = SnapshotId(self._attempt, self._step)
            self._known[found] = self._states
            for node in self.nodes:
                kept = {one: s for one, s in node.memory.items() if one == self.safe}
                node.memory = {**kept, found: self._states}
            self.safe = found
        self.engine.after(self._step_s, self._stepped, life)

    # --------------------------------------------------------------------------- the coordinator

    def _tick(self, run: int) -> None:
        if self._over or run != self._run:
            return
        names = [node.name for node in self.nodes]
        order = self.written.write(self.safe, names, self.start.number, self.engine.now)
        if order is not None:
            self._say(f"write {order}")
            for node in self.nodes:
                self.engine.after(self.engine.jitter(DELAY_S), self._ordered, node, order, run)
        stop = self.written.drained(self.engine.now)
        if stop is not None:
            self.coverage["drained" if stop.exit_code == ExitCode.REQUEUE else "not drained"] += 1
            self.book.drained(stop.exit_code)
            self._over = True
        self.engine.after(TICK_S, self._tick, run)

    def _ordered(self, node: Node, order: Persist, run: int) -> None:
        if not self._over and run == self._run:
            node.persist(order)

    def _heard(self, name: str, told: Persisted) -> None:
        self.engine.after(self.engine.jitter(DELAY_S), self._hear, name, told, self._run)

    def _hear(self, name: str, told: Persisted, run: int) -> None:
        if self._over or run != self._run:
            return
        for record in self.written.hear(name, told, self.engine.now):
            self.coverage[record.event] += 1
            if record.event == "snapshot.persisted":
                found = SnapshotId(told.attempt, told.step)
                self._say(f"on the disk: {self._known[found]}")
                self.book.wrote(self._known[found])

    # --------------------------------------------------------------------------- faults

    def _strike(self, run: int, kind: str) -> None:
        if self._over or run != self._run:
            return
        self._say(f"fault {kind}")
        self.coverage[kind] += 1
        node = self.engine.rng.choice(self.nodes)
        match kind:
            case "drain":
                self._draining = True
                self.book.drains(self._known.get(self.safe, NOTHING))
                self.written.drain(self.safe, "SIGTERM", self.engine.now)
                return  # it ends by itself
            case "keeper":
                node.end_keeper()
            case "coordinator":
                self.written = WrittenSnapshots()
            case "restart":
                self._begin_again()
            case "unfit" if self.safe != NONE:
                for each in self.nodes:
                    each.unfit(self.safe)
                self.book.unfit(self._known[self.safe])
                states = self._begin_again()
                self.coverage["an older one from the disk"] += bool(states)
                if self._resume == "auto":
                    self.book.began(states)
            case "full":
                node.full = True
            case "disk" if not self._shared:
                node.lose_disk()
                self.book.lost_disk()
                self._over = True
        self.engine.after(self.engine.jitter(0.5 * WRITE_EVERY_S), self._end, run, kind)

    def _begin_again(self) -> dict[int, State]:
        """The next attempt begins. Returns the states that ranks have read from disks."""
        renewed = self._formation.renewed(
            attempt=self._attempt + 1, restarts=0, awaited=frozenset(), begun_at=self.engine.now
        )
        return self._form(renewed, self._attempt + 1)

    def _end(self, run: int, kind: str) -> None:
        """By a power cut, whatever was under way."""
        if run != self._run or self._over:
            return
        if not kind:
            demand(self.book.persisted > self._persisted, "DISK-L", "nothing got onto the disk")
        self._over = True

    def _say(self, words: str) -> None:
        self.lines.append(f"{self.engine.now:9.1f} {words}")


def simulate_alone(seed: int) -> Outcome:
    """One history, in directories of its own that are gone then."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        return World(seed, Path(folder)).history()
