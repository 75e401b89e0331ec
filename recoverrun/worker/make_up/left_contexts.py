"""The contexts of lost ranks, and where these stand now: they are followed from point to point."""

import threading
from collections.abc import Callable, Iterable
from functools import partial

from recoverrun.worker.context.context_buffer import contexts_in
from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.deadly_microbatches import DeadlyMicrobatches
from recoverrun.worker.make_up.own_moves import OwnMoves
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.replay.lost_rank import LostRank, lost_rank
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch
from rendezvous.protocol.messages import LostContexts
from rendezvous.protocol.shared_memory import parse_marks

CONTEXTS_WAIT_S = 2.0
"""What a lost rank left comes after the view without it: at once, if anything is there to come."""

NOTHING = "rank {rank} left no context that can be used in step {step}"

STALE = (
    "{nothing}: the newest that reached another node is of step {newest}, and what its "
    "script did from there on went with it"
)

Informs = Callable[[LostRank], LostRank]


class LeftContexts:
    """The contexts that lost ranks left, by rank, as the launcher passes them on."""

    def __init__(self, worker: WorkerState, executor: Executor, informs: Informs) -> None:
        """`informs` lets what is known of all ranks hold for one that is lost."""
        self._worker = worker
        self._executor = executor
        self.informs = informs
        self.own_moves = OwnMoves(executor)
        self._came = threading.Condition()
        self.deaths = DeadlyMicrobatches()
        self.contexts: dict[int, list[Context]] = {}
        self.marks: dict[int, dict[tuple[int, int], Mark]] = {}
        self._awaited: set[int] = set()
        self._renewed: set[int] = set()  # ranks that have not committed since they came back
        self._proved: set[int] = set()  # of those, who were compared with what survivors follow

    def inherit(self, left: LostContexts) -> None:
        """Take the contexts of lost ranks, on the control thread."""
        with self._came:
            for rank, packed in left.contexts:
                if not self._unproved(rank):
                    self.contexts[rank] = [one for part in packed for one in contexts_in(part)]
            self.deaths.learn(left.begun)
            for rank, ring in left.marks:
                if not self._unproved(rank):
                    self.marks[rank] = parse_marks(ring)
            self._came.notify_all()

    def _unproved(self, rank: int) -> bool:
        """True if `rank` was to take part again from this transaction on, and was not proved: where
        it stood may be another place than its slot's, which is still followed.
        """
        joins = self._worker.joining and rank in self._worker.joined
        return joins and rank not in self._proved

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

    def absorb_of(self, rank: int) -> None:
        """Take in what lost `rank` left, once that is there."""
        self.await_contexts(rank)
        self.absorb()

    def absorb(self) -> None:
        """Take in what lost ranks left, as soon as it is there: own points are kept not long."""
        with self._came:
            left = dict(self.contexts)
        if not left:
            return
        points, runtime = self._executor.captures.by_point, self._worker.runtime
        for rank in sorted(left.keys() - self._executor.lost.keys()):
            apart = runtime.gate.apart_from(rank)
            lost = lost_rank(rank, left[rank], points, apart=apart)
            if lost is not None:
                lost.led = partial(runtime.gate.has_done, rank)
                self._executor.lost[rank] = self.informs(lost)
        for rank in sorted(self._renewed & left.keys() & self._executor.lost.keys()):
            self._executor.lost[rank].end_as_left(left[rank], points)

    def renew(self, ranks: Iterable[int]) -> None:
        """These may take part again at once. They are followed on until they have committed, and
        what their new processes leave, should these be lost before, is not there yet.
        """
        self.absorb()
        with self._came:
            for rank in ranks:
                self.contexts.pop(rank, None)
                self._awaited.discard(rank)
                self._proved.discard(rank)
                self._renewed.add(rank)

    def trust(self, ranks: Iterable[int]) -> None:
        """Trust ranks that were proved in the transaction in which they take part again."""
        with self._came:
            self._proved.update(ranks)

    def stay(self, ranks: Iterable[int]) -> None:
        """Ranks that were awaited did not come: nothing else is left by them."""
        for rank in ranks:
            self._renewed.discard(rank)
            self._awaited.add(rank)

    def forget(self, rank: int) -> None:
        """`rank` takes part again: what its former process left counts no more."""
        with self._came:
            self.contexts.pop(rank, None)
            self.marks.pop(rank, None)
        self._worker.left_buffers.forget(rank)
        self._awaited.discard(rank)
        self._renewed.discard(rank)
        self._executor.lost.pop(rank, None)

    def follow(self, here: Context) -> None:
        """This rank has come to its own point `here`: so have all lost ranks."""
        worker = self._worker
        if not worker.lost or not self.exact:
            return
        for rank in sorted(self._renewed):
            if rank not in worker.protection.machine.view.live_ranks:
                self.await_contexts(rank)  # lost in its first transaction, which may be committed
        if here.kind == "top":
            for lost in self._executor.lost.values():
                lost.begin(here.point)
        self.absorb()
        for rank, lost in sorted(self._executor.lost.items()):
            left = self.contexts.get(rank, ())
            ahead = [one for one in left if (one.point, one.loop) == (here.point, here.loop)]
            if ahead and here.point not in lost.states:
                lost.learn(ahead[0], here)
            try:
                lost.at(here.point, self._executor.captures.points)
            except NotReplayable as reason:
                if here.loop in self._worker.runtime.regions:  # nobody begins anywhere else
                    self._worker.guarantee.weaken(str(reason))
        if here.kind == "top" and here.loop in self._worker.runtime.regions:
            lost_ranks = [one for _, one in sorted(self._executor.lost.items())]
            if why := self.own_moves.found(here, lost_ranks):
                self._worker.guarantee.weaken(why)

    def ended(self) -> None:
        """A transaction of this rank is over."""
        if self._executor.lost and self.exact:
            self.own_moves.rests()
        else:
            self.own_moves.forget()

    def state_of(self, rank: int, microbatch: Microbatch) -> KnownState:
        """The state of lost `rank` as this microbatch's iteration began. Raises NotReplayable."""
        self.absorb()
        lost, top = self._executor.lost.get(rank), microbatch.top.context
        if lost is None or top is None:
            raise NotReplayable(self._why_unknown(rank))
        return lost.at(top.point, self._executor.captures.points)

    def _why_unknown(self, rank: int) -> str:
        """The reason why nothing is known of lost `rank`: a silent launcher entrusts no contexts,
        while its workers train on.
        """
        step = self._worker.step
        nothing = NOTHING.format(rank=rank, step=step)
        newest = max((one.step for one in self.contexts.get(rank, ())), default=step)
        return STALE.format(nothing=nothing, newest=newest) if newest < step else nothing
