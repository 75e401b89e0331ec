"""What lost ranks have left, and where they stand now: they are followed from point to point."""

import threading
from collections.abc import Callable
from functools import partial

from recoverrun.worker.context.context_buffer import contexts_in
from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.deadly_microbatches import DeadlyMicrobatches
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import State
from recoverrun.worker.replay.lost_rank import LostRank, lost_rank
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch
from rendezvous.protocol.messages import LostContexts
from rendezvous.protocol.shared_memory import parse_marks

CONTEXTS_WAIT_S = 2.0
"""What a lost rank left comes after the view without it: at once, if anything is there to come."""

NOTHING = "rank {rank} left no context that can be used in transaction {step}"

Informs = Callable[[LostRank], LostRank]


class LeftContexts:
    """By lost rank, as the launcher passes it on."""

    def __init__(self, worker: WorkerState, executor: Executor, informs: Informs) -> None:
        """`informs` lets what is known of all ranks hold for one that is lost."""
        self._worker = worker
        self._executor = executor
        self._informs = informs
        self._came = threading.Condition()
        self.deaths = DeadlyMicrobatches()
        self.contexts: dict[int, list[Context]] = {}
        self.marks: dict[int, dict[tuple[int, int], Mark]] = {}
        self._awaited: set[int] = set()

    def inherit(self, left: LostContexts) -> None:
        """From the control thread: what lost ranks left."""
        with self._came:
            for rank, packed in left.contexts:
                self.contexts[rank] = [one for part in packed for one in contexts_in(part)]
            self.deaths.learn(left.doing)
            for rank, ring in left.marks:
                self.marks[rank] = parse_marks(ring)
            self._came.notify_all()

    def await_contexts(self, rank: int) -> None:
        """Wait for what lost `rank` left, if that may still come and matters.

        Before a decision it may not be there yet: the script's thread hears of a view as soon as
        its collectives do.
        """
        if self.exact and rank not in self._awaited:
            with self._came:
                self._came.wait_for(lambda: rank in self.contexts, timeout=CONTEXTS_WAIT_S)
            self._awaited.add(rank)

    @property
    def exact(self) -> bool:
        """True if lost microbatches are made up with their own samples."""
        return self._worker.guarantee.exact

    def absorb(self) -> None:
        """Take in what lost ranks left, as soon as it is there: own points are kept not long."""
        with self._came:
            left = dict(self.contexts)
        own, runtime = self._executor.captures.by_point, self._worker.runtime
        for rank in sorted(left.keys() - self._executor.lost.keys()):
            apart = runtime.apart_from(rank)
            lost = lost_rank(rank, left[rank], own, apart=apart)
            if lost is not None:
                lost.led = partial(runtime.has_done, rank)
                self._executor.lost[rank] = self._informs(lost)

    def follow(self, here: Context) -> None:
        """This rank has come to its own point `here`: so have all lost ranks."""
        if not self._worker.lost or not self.exact:
            return
        self.absorb()
        for rank, lost in sorted(self._executor.lost.items()):
            ahead = [one for one in self.contexts.get(rank, ()) if one.point == here.point]
            if ahead and here.point not in lost.states:
                lost.learn(ahead[0], here)
            try:
                lost.at(here.point, self._executor.captures.points)
            except NotReplayable as reason:
                if here.loop in self._worker.runtime.regions:  # nobody begins anywhere else
                    self._worker.guarantee.weaken(str(reason))

    def state_of(self, rank: int, microbatch: Microbatch) -> State:
        """Where lost `rank` stood as this microbatch's iteration began. Raises NotReplayable."""
        self.absorb()
        lost, top = self._executor.lost.get(rank), microbatch.top.context
        if lost is None or top is None:
            raise NotReplayable(NOTHING.format(rank=rank, step=self._worker.step))
        return lost.at(top.point, self._executor.captures.points)
