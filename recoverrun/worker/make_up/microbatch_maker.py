"""The execution of single microbatches of lost slots by this rank, exactly or on fresh data.

Exact: the script's code runs as the lost rank (`executor`), and what enters the model, and the
loss, must be what that rank had noted of the same microbatch. Where code cannot be executed so, or
comes out otherwise, the microbatch is made up with this rank's own next data.
"""

from contextlib import suppress

from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.reducer import Piece, Reducer
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up import noted_evidence
from recoverrun.worker.make_up.deadly_microbatches import KILLS, microbatch_id_of
from recoverrun.worker.make_up.doubts import IMPOSSIBLE, Doubts
from recoverrun.worker.make_up.followed_buffers import FollowedBuffers
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.made_microbatch import Apart, MadeMicrobatch
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import KnownState, Lacking, lacking
from recoverrun.worker.replay.taken_items import TakenForGood
from recoverrun.worker.step.forward_sync import Buffers
from recoverrun.worker.step.interfaces import Rehearses
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch
from rendezvous.protocol.views import Identity

NO_MORE = "a survivor cannot compute lost microbatches from the same samples any more"

ONCE_MORE = (
    "rank {}'s microbatches from step {} on are replaced by a survivor's own, computed once "
    "more with its shard mates, as no other data can be had: {}"
)
REPEATS = (
    "rank {}'s microbatches from step {} on are replaced by the mean of a survivor's own, "
    "as no other data can be had: {}"
)


class MicrobatchMaker:
    """The microbatches of the present transaction that this rank has `made` up."""

    def __init__(
        self, worker: WorkerState, executor: Executor, left: LeftContexts, rehearsal: Rehearses
    ) -> None:
        self._worker = worker
        self._executor = executor
        self._left = left
        self._rehearsal = rehearsal
        self.made: dict[Identity, MadeMicrobatch] = {}
        self.doubts = Doubts(worker, executor)
        self.buffers = FollowedBuffers(worker, self.aside)
        self.telling = True  # all members are exact, as far as all know
        self._repeats = False  # the run was told that no other data can be had

    def compute(self, identity: Identity) -> None:
        """Make up one microbatch of a lost slot. Raises what the script's own code raises."""
        worker, layout = self._worker, self._worker.protection.layout
        rank = layout.replicas[identity[0]][layout.place(worker.env.rank)[1]]
        made = MadeMicrobatch(identity, rank, [])
        if self.may_execute(made):
            self.execute(made)
        if made.executed is None and (layout.shards > 1 or not self._left.exact):
            self.freshly(made)  # shard mates execute it, and their forward pass needs us
        self.made[identity] = made

    def may_execute(self, made: MadeMicrobatch) -> bool:
        """True if all shard mates can begin the lost microbatch exactly: their forward passes need
        each other, so one that knows that it cannot has all of them take fresh data at once.

        Raises Superseded.
        """
        worker, protection = self._worker, self._worker.protection
        if protection.layout.shards == 1 or not self.telling:
            return self._left.exact
        rank, objection = made.rank, self._objection(made)
        marks, fabric = self._left.marks.get(rank, {}), protection.fabric
        committed = IMPOSSIBLE
        if not objection:
            committed = self.doubts.last_committed(rank, worker.step, marks)
        words = {"objection": objection, "committed": committed}
        heard = gather(fabric, protection.mates, fabric.view.generation, words)
        objections = [objection, *(str(one["objection"]) for one in heard.values())]
        if any(objections) and self._left.exact:
            made.failed = next(filter(None, objections))
        self.doubts.agree(rank, min(one["committed"] for one in heard.values()))
        return not any(objections)

    def _objection(self, made: MadeMicrobatch) -> str:
        """The reason why this rank cannot begin the lost microbatch exactly, or ""."""
        if not self._left.exact:
            return self._worker.guarantee.weakened or NO_MORE
        microbatch = self.own(made.identity[1])
        try:
            self._require_harmless(made, microbatch)
            self._left.state_of(made.rank, microbatch)
        except NotReplayable as reason:
            return str(reason)
        return ""

    @property
    def own_all(self) -> list[Microbatch]:
        """This rank's own microbatches of the present transaction."""
        return self._worker.runtime.microbatches

    def own(self, index: int) -> Microbatch:
        return self._worker.runtime.microbatches[index]

    def execute(self, made: MadeMicrobatch) -> None:
        """Execute as the lost rank; `made.failed` says why not."""
        step, microbatch = self._worker.step, self.own(made.identity[1])
        made.start, made.executed, made.failed = None, None, ""
        microbatch_id, context_buffer = (
            microbatch_id_of(step, made.identity),
            self._worker.context_buffer,
        )
        try:
            self.doubts.check_own_microbatch(made.rank)  # first: shard mates do so together
            self._require_harmless(made, microbatch)
            context_buffer.enters(microbatch_id)
            if self._rehearsal.is_wanted(made.identity):
                self._rehearse(made, microbatch)
            start, executed = self._attempt(made, microbatch)
        except NotReplayable as reason:
            made.failed = str(reason)
            if isinstance(reason, GivenUp):
                self._left.deaths.give_up(microbatch_id, str(reason))
                context_buffer.gives_up()  # shard mates may hang in it, and take this rank along
            return
        finally:
            context_buffer.rests()
        if executed.after is not None:
            unknown = lacking(start, executed.after)
            self.learn(made.rank, executed.after, unknown, assumed=start.assumed)
        if not start.assumed:
            made.failed = self.disproved(made, step)

    def _attempt(self, made: MadeMicrobatch, microbatch: Microbatch) -> tuple[KnownState, Executed]:
        """Execute, and doubt what came of it: the start, and what did. Raises NotReplayable."""
        step = self._worker.step
        made.start = self._left.state_of(made.rank, microbatch)
        marks = self._left.marks.get(made.rank, {})
        self.doubts.check_last_committed(made.rank, step, marks)
        with Apart(self._worker) as apart:
            before = self.buffers.before(self.made, made.identity)
            made.executed = self._executor.execute(made.rank, made.start, step, microbatch, before)
            made.pieces = apart.pieces(carried=not made.identity[1])
            made.fresh = False
        self.doubts.check_collectives(made, microbatch)
        self.doubts.check_unknown(made, microbatch)
        return made.start, made.executed

    def _rehearse(self, made: MadeMicrobatch, microbatch: Microbatch) -> None:
        """Attempt it in a copy of this process first. Raises NotReplayable."""
        copy = MadeMicrobatch(made.identity, made.rank, [])

        def attempt() -> None:
            try:
                self._attempt(copy, microbatch)
            except NotReplayable:
                if self._worker.protection.layout.shards > 1:
                    self.freshly(copy)  # as this process will: its mates are not left alone
                raise

        why = self._rehearsal.hold(made.identity, attempt)
        if why:
            raise GivenUp(self._killing(made, microbatch, why))

    def _killing(self, made: MadeMicrobatch, microbatch: Microbatch, why: str) -> str:
        words = KILLS.format(
            rank=made.rank, index=made.identity[1], step=self._worker.step, why=why
        )
        return f"{microbatch.top.loop.id}: {words}"

    def _require_harmless(self, made: MadeMicrobatch, microbatch: Microbatch) -> None:
        """Raises NotReplayable if too many have died in it, or it was given up."""
        why = self._left.deaths.objection(microbatch_id_of(self._worker.step, made.identity))
        if why:
            raise NotReplayable(self._killing(made, microbatch, why))

    def disproved(self, made: MadeMicrobatch, step: int) -> str:
        """The reason why the executed microbatch is not the lost rank's, or "", by its own mark."""
        known = self._left.marks.get(made.rank, {}).get((step, made.identity[1]))
        return noted_evidence.unlike(made, known, step) if known is not None else ""

    def learn(self, rank: int, after: Context, unknown: Lacking, *, assumed: bool) -> None:
        """The lost rank stands there at the end of a microbatch."""
        mine = self._executor.captures.at(after.point)
        if mine is not None and rank in self._executor.lost:
            self._executor.lost[rank].learn(after, mine, assumed=assumed, lacking=unknown)

    def freshly(self, made: MadeMicrobatch) -> None:
        carried = not made.identity[1]
        try:
            with Apart(self._worker) as apart:
                self._executor.execute_fresh(self.own(made.identity[1]))
                made.pieces = apart.pieces(carried=carried)
        except NotReplayable as reason:
            taken = isinstance(reason, TakenForGood)  # its own once more would take one, too
            together = [] if taken else self._own_with_mates(made.identity[1])
            made.pieces = together or self._own_again(carried)
            if not self._repeats:
                self._repeats = True
                words = (ONCE_MORE if together else REPEATS).format(
                    made.rank, self._worker.step, reason
                )
                self._worker.reporter.notice(words)
        made.executed, made.start, made.fresh = None, None, True

    def _own_with_mates(self, index: int) -> list[tuple[Reducer, Piece]]:
        """Shard mates execute theirs, and their forward pass needs us: of our part, our own
        microbatch is executed once more. Nothing where we have no mates, or that cannot be done.
        """
        worker, own = self._worker, self.own(index)
        if worker.protection.layout.shards == 1 or own.top.context is None:
            return []
        with suppress(NotReplayable), Apart(worker) as apart:
            self._executor.execute(worker.env.rank, KnownState(own.top.context), worker.step, own)
            return apart.pieces(carried=not index)
        return []

    def _own_again(self, carried: bool) -> list[tuple[Reducer, Piece]]:
        """The last resort where the script's code gives nothing: the mean of own microbatches."""
        count, strategy = len(self.own_all), self._worker.protection.strategy
        return [(one, one.share(count, carried)) for one in strategy.reducers()]

    def aside(self, identity: Identity, rank: int, before: Buffers = ()) -> MadeMicrobatch:
        """Execute a microbatch that another survivor makes up, for it to be compared.

        Nothing is learned of it: where the lost rank stands after later ones has been told.
        """
        worker, made = self._worker, MadeMicrobatch(identity, rank, [])
        step, microbatch = worker.step, self.own(identity[1])
        worker.context_buffer.enters(microbatch_id_of(step, identity))
        with worker.timing.measure("redo"), suppress(NotReplayable):
            state = self._left.state_of(rank, microbatch)
            with Apart(worker) as apart:
                made.executed = self._executor.execute(rank, state, step, microbatch, before)
                made.pieces = apart.pieces(carried=not identity[1])
        worker.context_buffer.rests()
        return made

    def guessed(self) -> str:
        """The reason why this rank's made-up microbatches are only a guess, or "". Shard mates do
        the same.
        """
        reasons = []
        for identity, made in sorted(self.made.items()):
            if made.start is None or made.executed is None:
                continue
            microbatch_id = microbatch_id_of(self._worker.step, identity)
            context_buffer = self._worker.context_buffer
            context_buffer.enters(microbatch_id)
            with self._worker.timing.measure("redo"):
                try:
                    reasons.append(self.doubts.guessed(made, self.own(identity[1])))
                except GivenUp as reason:
                    reasons.append(str(reason))
                    self._left.deaths.give_up(microbatch_id, str(reason))
                    context_buffer.gives_up()
            context_buffer.rests()
        return next(filter(None, reasons), "")
