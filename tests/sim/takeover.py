"""The launchers of a simulated history when the one that coordinates is lost.

Every rank has a launcher of its own, whose memory is lost with its node and not with its worker. It
switches to the successor at a moment of its own, and from then on takes nothing from the
predecessor.
"""

from collections.abc import Sequence
from typing import Protocol

from rendezvous.coordinator.coordinator import Coordinator, Received
from rendezvous.coordinator.standing import Memory, Standing, Vacancy
from rendezvous.coordinator.takeover import new_coordinator
from rendezvous.protocol.effects import Effect, StopJob
from rendezvous.protocol.messages import Committed, Message, Stop, Topology, Verdict
from rendezvous.protocol.views import View
from tests.sim.book import Book
from tests.sim.engine import Engine
from tests.sim.plan import Plan
from tests.sim.suspects import Suspects

Line = tuple[int, int]
"""From a rank's launcher to a coordinator: the term of that, and how often a lost one was replaced.

What goes over another one has no effect.
"""


class Losses(Protocol):
    """The listeners to what was lost."""

    def tell_loss(self, ranks: tuple[int, ...], expected: bool) -> None: ...


class Job(Protocol):
    """The interface of the history to a takeover."""

    engine: Engine
    plan: Plan
    book: Book
    coordinator: Coordinator
    suspects: Suspects

    def wish(self, effects: list[Effect], cause: Message | None) -> None: ...
    def trace(self, event: str, reason: str, **fields: object) -> None: ...
    @property
    def life(self) -> Losses: ...


class Takeover:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.term = 1
        self.vacant = False
        self.memories = {rank: Memory() for rank in job.plan.world}
        self.follows = dict.fromkeys(job.plan.world, 1)  # rank -> term that its launcher obeys
        self.replaced = dict.fromkeys(job.plan.world, 0)  # rank -> how often its launcher was
        self.lost: set[int] = set()  # ranks whose launcher is gone
        self.noticed: set[int] = set()  # those of them of which the coordinator knows that
        self.standings: dict[int, Standing] = {}
        self.promised: set[int] = set()  # ranks that have said what they promise
        self.vouched: set[int] = set()  # those of whom the successor is told that
        self.early: list[Message] = []  # for a successor that is not ready yet

    # --------------------------------------------------------------------------- launchers

    def said(self, rank: int, message: Message) -> None:
        self.memories[rank].said(message)
        if isinstance(message, Verdict):
            self.promised.add(rank)

    def up(self, rank: int) -> Line:
        """By which its launcher speaks to the coordinator that it obeys."""
        return self.follows[rank], self.replaced[rank]

    def down(self, rank: int) -> Line:
        """By which the coordinator speaks to it."""
        return self.term, self.replaced[rank]

    def heard(self, rank: int, message: Message, line: Line) -> bool:
        """True if the launcher of `rank` lives, and takes this."""
        if line != self.up(rank) or rank in self.lost:
            return False
        self.memories[rank].heard(message)
        return True

    def reaches(self, rank: int, message: Message, line: Line) -> bool:
        """True if a coordinator takes this message of a rank, which was sent by `line`, now."""
        if line != self.down(rank):
            return False
        if self.vacant:
            self.early.append(message)
        return not self.vacant

    def lose(self, ranks: Sequence[int]) -> None:
        self.lost.update(ranks)
        self.job.suspects.lost(ranks)
        if self.lost >= set(self.job.plan.world):
            stop = Stop(exit_code=137, reason="no launcher is left", root_rank=-1)
            self.job.wish([StopJob(stop=stop)], None)
        self._complete()

    def take_place(self, rank: int) -> None:
        """Another launcher has the place of the one that is lost."""
        self.lost.discard(rank)
        self.noticed.discard(rank)
        self.memories[rank] = Memory()
        self.follows[rank] = self.term
        self.replaced[rank] += 1

    # --------------------------------------------------------------------------- taking over

    def begin(self) -> None:
        """The launcher with the coordinator is gone; the others notice, one by one."""
        self.term += 1
        self.vacant = True
        self.standings.clear()
        self.vouched.clear()
        self.early.clear()
        self.job.trace("sim.vacant", f"term {self.term} begins")
        rng = self.job.engine.rng
        elected_s = rng.choice((0.1, 0.5, 2.0))
        for rank in self.job.plan.world:
            self.job.engine.after(
                elected_s + self.job.engine.jitter(0.1), self._switch, rank, self.term
            )

    def _switch(self, rank: int, term: int) -> None:
        if rank in self.lost or term != self.term:
            return
        self.follows[rank] = term
        self.standings[rank] = self.memories[rank].standing
        self.vouched |= self.promised & {rank}
        self._complete()

    def _complete(self) -> None:
        """Once everybody has spoken who is left, the new coordinator begins."""
        awaited = set(self.job.plan.world) - self.lost - self.standings.keys()
        if not self.vacant or awaited or not self.standings:
            return
        self.vacant = False
        job, lost = self.job, tuple(sorted(self.lost))
        standings = [self.standings[r] for r in sorted(self.standings) if r not in self.lost]
        facts = [message for standing in standings for message in standing]
        views = [fact for fact in facts if isinstance(fact, View)]
        newest = max(views, key=lambda view: view.generation, default=None)
        job.book.succeeded(
            topology=any(isinstance(fact, Topology) for fact in facts),
            promising=self.vouched - self.lost,
            committed=max((f.step for f in facts if isinstance(f, Committed)), default=-1),
            live=job.plan.world if newest is None else newest.live_ranks,
        )
        self.noticed = set(lost)
        job.life.tell_loss(lost, False)
        vacancy = Vacancy(
            term=self.term,
            world=job.plan.world,
            policy=job.plan.policy,
            lost=(("gone", lost, "it is gone"),) if lost else (),
            reason="its launcher is gone",
        )
        job.coordinator, effects = new_coordinator(vacancy, standings, job.engine.now)
        job.wish(effects, None)
        early, self.early = self.early, []
        for message in early:
            job.book.informed(message)
            job.wish(job.coordinator.step(Received(message=message), job.engine.now), message)
