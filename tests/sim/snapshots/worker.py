"""A rank's process: it does steps with the others, and leaves its state in bays while it does."""

from rendezvous.protocol.incarnations import attempt_of
from rendezvous.snapshots.identity import SnapshotId
from tests.sim.engine import Engine
from tests.sim.snapshots.memory import Memory
from tests.sim.snapshots.node import Node


class Worker:
    def __init__(
        self, rank: int, incarnation: int, world: int, node: Node, engine: Engine, every: int
    ) -> None:
        self.rank, self.incarnation, self.world = rank, incarnation, world
        self.node = node
        self._engine = engine
        self._every = every
        self.alive = True
        self.step = 0
        self.begun_at = 0  # the step that it began with
        self._bay: Memory | None = None
        self.missed = 0
        self._stands_for = -1  # a lost rank whose work this one does, too
        self._resumes = -1  # the step from whose top on snapshots are taken again
        self._turns = 0  # that were left out before it
        node.processes.add((rank, incarnation))

    @property
    def attempt(self) -> int:
        return attempt_of(self.incarnation)

    def top(self, step: int, step_s: float) -> None:
        """At the top of `step`; half of the copy is made now, half while the step runs."""
        self.fence()
        self.step = step
        if 0 <= self._resumes <= step:
            self._stands_for, self._resumes, self._turns = -1, -1, step // self._every
        if step % self._every or step == self.begun_at or self._stands_for >= 0:
            return
        self._bay = self.node.reserve(
            self.rank, self.incarnation, step // self._every - self._turns
        )
        if self._bay is None:
            self.missed += 1
            return
        self._copy(self._bay, 0)
        self._engine.after(step_s * self._engine.rng.random(), self._copy, self._bay, 1)

    def fence(self) -> None:
        """Before the optimizer: the copy is whole."""
        bay, self._bay = self._bay, None
        if bay is None or not self.alive or self._stands_for >= 0:
            return
        self._copy(bay, 1)
        bay.header, bay.world = SnapshotId(self.attempt, self.step), self.world
        self.node.filled(self.rank, self.incarnation, bay)

    def hear_of_loss(self, rank: int) -> None:
        """Another replica is lost. What this process does from now on it does for that, too: what
        it copies is not what it was at the top of the step.
        """
        self._stands_for, self._resumes = rank, -1

    def come(self, rank: int, step: int) -> None:
        """All take part again at the top of `step`, this process perhaps in a lost one's place."""
        self._stands_for, self._resumes = rank, step + 1

    def _copy(self, bay: Memory, half: int) -> None:
        if self.alive:
            rank = self.rank if self._stands_for < 0 else self._stands_for
            bay.halves[half] = (rank, self.attempt, self.step)

    def scribble(self, until: float, step_s: float) -> None:
        """Its end has been ordered, and the kernel goes on with what it had begun to write."""
        if self._engine.now > until:
            self.die()
            return
        if self._bay is not None:
            self.step += 1
            self._copy(self._bay, self._engine.rng.randrange(2))
        self._engine.after(step_s / 3, self.scribble, until, step_s)

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.node.ended(self.rank, self.incarnation)
