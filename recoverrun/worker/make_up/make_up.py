"""Making up microbatches of lost slots, exactly where that can be done, honestly where it cannot.

Exact: the survivor executes the script's code as the lost rank (`executor`), and holds what
enters the model, and the loss, against what that rank had noted of the same microbatch. Before the
transaction is reduced, all survivors tell each other where the lost ranks stand now. Starts that
had been assumed are compared with what was told; where they differ, the microbatch is executed
again. What cannot be told, or comes out otherwise, is made up with fresh data: the transaction
still has its B microbatches, and the run says that from here on its promise is `equal-count`.
"""

from contextlib import suppress
from dataclasses import replace

from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.reducer import Piece, Reducer
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up import arrival_proof, noted_evidence
from recoverrun.worker.make_up.audits import Audits
from recoverrun.worker.make_up.deadly_microbatches import KILLS, which
from recoverrun.worker.make_up.doubts import Doubts
from recoverrun.worker.make_up.followed_buffers import FollowedBuffers
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.made_microbatch import Apart, Made
from recoverrun.worker.make_up.told_positions import End, Start, ToldPositions
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import (
    Lacking,
    State,
    from_words,
    lacking,
)
from recoverrun.worker.step.forward_sync import Buffers
from recoverrun.worker.step.interfaces import Rehearses
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch
from rendezvous.protocol.views import Identity

FRESH, AGAIN, WHOLE, AUDIT = range(4)
"""What has to become of the microbatches that were made up, the worst of them first; where they are
whole on all ranks, one of them may have to be audited.
"""

ENDLESS = "nobody can tell where rank {rank}'s microbatch {index} of transaction {step} begins"
ONCE_MORE = (
    "no other data can be had in the place of rank {}'s microbatches from transaction {} on, a "
    "survivor's own, computed once more with its shard mates, stand for them: {}"
)
REPEATS = (
    "no other data can be had in the place of rank {}'s microbatches from transaction {} on, the "
    "mean of a survivor's own stands for them: {}"
)


class MakeUp:
    """The microbatches that this rank makes up for lost ones."""

    def __init__(
        self, worker: WorkerState, executor: Executor, left: LeftContexts, rehearsal: Rehearses
    ) -> None:
        self._worker = worker
        self._executor = executor
        self._left = left
        self._made: dict[Identity, Made] = {}  # in the present transaction
        self._folded: set[Identity] = set()  # of those, what reducers have
        self._positions = ToldPositions(worker, executor, left)
        self._audits = Audits(worker, executor)
        self._executors: dict[tuple[int, int], int] = {}  # of a lost rank's microbatch
        self._doubts = Doubts(worker, executor)
        self._buffers = FollowedBuffers(worker, self._aside)
        self._rehearsal = rehearsal
        self._repeats = False  # said: other data cannot be had
        self._telling = True  # all members are exact, as far as all know

    def learned(self) -> bool:
        """True if survivors tell each other where lost ranks stand."""
        return self._telling

    def learn(self, learned: bool) -> None:
        """Learn what the others do, in a process that takes a lost rank's place."""
        self._telling = learned

    # --------------------------------------------------------------------------- computing

    def compute(self, identity: Identity) -> None:
        """Make up one microbatch of a lost slot. Raises what the script's own code raises."""
        worker, layout = self._worker, self._worker.protection.layout
        rank = layout.replicas[identity[0]][layout.place(worker.env.rank)[1]]
        made = Made(identity, rank, [])
        if self._left.exact:
            self._execute(made)
        if made.executed is None and (layout.shards > 1 or not self._left.exact):
            self._freshly(made)  # shard mates execute it, and their forward pass needs us
        self._made[identity] = made

    def _own(self, index: int) -> Microbatch:
        return self._worker.runtime.microbatches[index]

    def _execute(self, made: Made) -> None:
        """Execute as the lost rank; `made.failed` says why not."""
        step, microbatch = self._worker.step, self._own(made.identity[1])
        made.start, made.executed, made.failed = None, None, ""
        microbatch_id, context_buffer = which(step, made.identity), self._worker.context_buffer
        try:
            self._doubts.memory(made.rank)  # first: shard mates do so together
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
            self._learn(made.rank, executed.after, unknown, assumed=start.assumed)
        if not start.assumed:
            made.failed = self._disproved(made, step)

    def _attempt(self, made: Made, microbatch: Microbatch) -> tuple[State, Executed]:
        """Execute, and doubt what came of it: the start, and what did. Raises NotReplayable."""
        step = self._worker.step
        made.start = self._left.state_of(made.rank, microbatch)
        self._doubts.precedent(made.rank, step, self._left.marks.get(made.rank, {}))
        with Apart(self._worker) as apart:
            before = self._buffers.before(self._made, made.identity)
            made.executed = self._executor.execute(made.rank, made.start, step, microbatch, before)
            made.pieces = apart.pieces(carried=not made.identity[1])
            made.fresh = False
        self._doubts.indifference(made, microbatch)
        self._doubts.ignorance(made, microbatch)
        return made.start, made.executed

    def _rehearse(self, made: Made, microbatch: Microbatch) -> None:
        """Attempt it in a copy of this process first. Raises NotReplayable."""
        copy = Made(made.identity, made.rank, [])

        def attempt() -> None:
            try:
                self._attempt(copy, microbatch)
            except NotReplayable:
                if self._worker.protection.layout.shards > 1:
                    self._freshly(copy)  # as this process will: its mates are not left alone
                raise

        why = self._rehearsal.hold(made.identity, attempt)
        if why:
            raise GivenUp(self._killing(made, microbatch, why))

    def _killing(self, made: Made, microbatch: Microbatch, why: str) -> str:
        words = KILLS.format(
            rank=made.rank, index=made.identity[1], step=self._worker.step, why=why
        )
        return f"{microbatch.top.loop.id}: {words}"

    def _require_harmless(self, made: Made, microbatch: Microbatch) -> None:
        """Raises NotReplayable if too many have died in it, or it was given up."""
        why = self._left.deaths.forbid(which(self._worker.step, made.identity))
        if why:
            raise NotReplayable(self._killing(made, microbatch, why))

    def _disproved(self, made: Made, step: int) -> str:
        """The reason why the executed microbatch is not the lost rank's, or "", by its own mark."""
        known = self._left.marks.get(made.rank, {}).get((step, made.identity[1]))
        return noted_evidence.unlike(made, known, step) if known is not None else ""

    def _learn(self, rank: int, after: Context, unknown: Lacking, *, assumed: bool) -> None:
        """The lost rank stands there at the end of a microbatch."""
        mine = self._executor.captures.at(after.point)
        if mine is not None and rank in self._executor.lost:
            self._executor.lost[rank].learn(after, mine, assumed=assumed, lacking=unknown)

    def _freshly(self, made: Made) -> None:
        carried = not made.identity[1]
        try:
            with Apart(self._worker) as apart:
                self._executor.execute_fresh(self._own(made.identity[1]))
                made.pieces = apart.pieces(carried=carried)
        except NotReplayable as reason:
            together = self._own_with_mates(made.identity[1])
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
        worker, own = self._worker, self._own(index)
        if worker.protection.layout.shards == 1 or own.top.context is None:
            return []
        with suppress(NotReplayable), Apart(worker) as apart:
            self._executor.execute(worker.env.rank, State(own.top.context), worker.step, own)
            return apart.pieces(carried=not index)
        return []

    def _own_again(self, carried: bool) -> list[tuple[Reducer, Piece]]:
        """The last resort where the script's code gives nothing: the mean of own microbatches."""
        count, strategy = len(self._own_all), self._worker.protection.strategy
        return [(one, one.share(count, carried)) for one in strategy.reducers()]

    # --------------------------------------------------------------------------- telling

    def tell(self, generation: int) -> None:
        """Before gradients are reduced: agree with all survivors on where lost ranks stand.

        Superseded if `generation` ends first.
        """
        worker = self._worker
        if not worker.lost:
            return
        if worker.joining:
            arrival_proof.compare_counts(worker, generation)
        if worker.joining and self._telling:
            proved = arrival_proof.prove(worker, self._executor, generation, self._aside)
            self._left.trust(proved)
        rounds = 0
        while self._telling:
            ends, starts = self._exchange(generation)
            bad = self._bad(ends, self._positions.begun(starts), rounds)
            whole = AUDIT if self._executors and self._audits.due else WHOLE
            worst = min(bad.values(), default=whole) if self._left.exact else FRESH
            verdict = worker.protection.vote_group.least(generation, worst)
            if verdict == AUDIT:
                verdict, bad = self._audited(generation)
            if verdict == WHOLE:
                break
            self._mend(generation, verdict, bad)
            rounds += 1
        for identity, made in sorted(self._made.items()):
            if identity not in self._folded:
                self._folded.add(identity)
                for reducer, piece in made.pieces:
                    reducer.add(identity, piece)

    def _exchange(self, generation: int) -> tuple[list[End], list[Start]]:
        """Tell and learn the ends of executed microbatches in this shard position, by lost rank and
        microbatch, and the starts of lost ranks that only those know who did in their place what
        they do alone.
        """
        protection = self._worker.protection
        ends = [end for one in self._made.values() if (end := self._positions.end_of(one))]
        said = {"ends": ends, "starts": self._positions.starts()}
        said |= {"buffers": self._buffers.told(self._made)}
        heard = gather(protection.fabric, protection.peers, generation, said)
        self._buffers.hear({rank: one["buffers"] for rank, one in heard.items()})
        self._executors = {
            (end[0], end[1]): rank for rank, one in heard.items() for end in one["ends"]
        }
        return (
            sorted(tuple(end) for one in heard.values() for end in one["ends"]),
            sorted(tuple(start) for one in heard.values() for start in one["starts"]),
        )

    def _audited(self, generation: int) -> tuple[int, dict[Identity, int]]:
        """The verdict on microbatches that another survivor has executed, too."""
        audited, why = self._audits.run(
            generation, self._executors, self._made, self._aside, self._guessed
        )
        verdict = self._worker.protection.vote_group.least(generation, FRESH if why else WHOLE)
        bad = self._made.keys() & audited if why else set()
        for identity in bad:
            self._made[identity].failed = why
        return verdict, dict.fromkeys(bad, FRESH)

    def _guessed(self) -> str:
        """The reason why this rank's made-up microbatches are only a guess, or "". Shard mates do
        the same.
        """
        reasons = []
        for identity, made in sorted(self._made.items()):
            if made.start is None or made.executed is None:
                continue
            microbatch_id = which(self._worker.step, identity)
            context_buffer = self._worker.context_buffer
            context_buffer.enters(microbatch_id)
            with self._worker.timing.measure("redo"):
                try:
                    reasons.append(self._doubts.guessed(made, self._own(identity[1])))
                except GivenUp as reason:
                    reasons.append(str(reason))
                    self._left.deaths.give_up(microbatch_id, str(reason))
                    context_buffer.gives_up()
            context_buffer.rests()
        return next(filter(None, reasons), "")

    def _aside(self, identity: Identity, rank: int, before: Buffers = ()) -> Made:
        """Execute a microbatch that another survivor makes up, for it to be compared.

        Nothing is learned of it: where the lost rank stands after later ones has been told.
        """
        worker, made = self._worker, Made(identity, rank, [])
        step, microbatch = worker.step, self._own(identity[1])
        worker.context_buffer.enters(which(step, identity))
        with worker.timing.measure("redo"), suppress(NotReplayable):
            state = self._left.state_of(rank, microbatch)
            with Apart(worker) as apart:
                made.executed = self._executor.execute(rank, state, step, microbatch, before)
                made.pieces = apart.pieces(carried=not identity[1])
        worker.context_buffer.rests()
        return made

    def _bad(self, ends: list[End], news: set[int], rounds: int) -> dict[Identity, int]:
        """Learn where lost ranks have ended. What this rank has made up that is not right."""
        for rank in sorted({end[0] for end in ends}):
            self._left.absorb_of(rank)
        step, wrong, told = self._worker.step, set[tuple[int, int]](), set[tuple[int, int]]()
        for rank, index, packed, assumed, digest, words in ends:
            if assumed and not self._positions.starts_there(rank, index, digest):
                wrong.add((rank, index))
            else:
                told.add((rank, index))
                self._learn(rank, Context.unpack(packed), from_words(words), assumed=False)
        found: dict[Identity, int] = {}
        for identity, made in self._made.items():
            if made.start is not None and made.start.assumed and not made.failed:
                if (made.rank, identity[1]) in wrong and rounds <= len(self._own_all):
                    found[identity] = AGAIN
                elif (made.rank, identity[1]) in wrong:
                    made.failed = ENDLESS.format(rank=made.rank, index=identity[1], step=step)
                else:
                    made.start = replace(made.start, assumed=False)
                    made.failed = self._disproved(made, step)
            if made.failed:
                # If its start was not known, those that executed the microbatch before may have
                # told it by now: one more microbatch in each round.
                known = made.start is not None and not made.start.assumed
                before = any((made.rank, index) in told for index in range(identity[1]))
                later = before and not known and rounds <= len(self._own_all)
                later = later and not self._left.deaths.forbid(which(step, identity))
                again = later or made.rank in news
                found[identity] = AGAIN if again else FRESH
        return found

    @property
    def _own_all(self) -> list[Microbatch]:
        return self._worker.runtime.microbatches

    def _mend(self, generation: int, verdict: int, bad: dict[Identity, int]) -> None:
        """All survivors do again what has to be, as any rank of a replica says."""
        worker = self._worker
        protection = worker.protection
        failed = [one.failed for one in self._made.values() if one.failed]
        mine = {
            "why": failed[:1],
            "fresh": [list(one) for one, what in bad.items() if what == FRESH],
            "again": [list(one) for one, what in bad.items() if what == AGAIN],
        }
        heard = gather(protection.fabric, protection.vote_group.channel, generation, mine)
        fresh = {(s, i) for one in heard.values() for s, i in one["fresh"]}
        again = {(s, i) for one in heard.values() for s, i in one["again"]} - fresh
        if verdict == FRESH:
            self._telling = False
            others = [words for one in heard.values() for words in one["why"]]
            worker.guarantee.weaken(next(iter(failed + others), ""))
        for identity in sorted(self._made.keys() & (fresh | again)):
            made = self._made[identity]
            with worker.timing.measure("redo"):
                if identity in again and self._left.exact:
                    self._execute(made)
                together = (
                    protection.layout.shards > 1
                )  # mates, in whatever way each of them is at it
                if identity in fresh or not self._left.exact:
                    if together or not made.fresh:
                        self._freshly(made)
                    made.failed = ""
                elif made.executed is None and together:
                    self._freshly(made)

    def end_step(self, step: int) -> None:
        """The transaction is committed."""
        self._buffers.committed(step)
        self._made.clear()
        self._folded.clear()
        self._worker.runtime.gate.begin_anew()
        self._left.absorb()
        lost = sorted(self._executor.lost)
        self._audits.committed(step, lost)
        self._doubts.committed()
        begun = [
            loop_frame.top.context
            for loop_frame in self._worker.runtime.under_way()
            if loop_frame.top
        ]
        for lost_rank in self._executor.lost.values():
            lost_rank.forget((step, 0, 0, 0), {top.point for top in begun if top is not None})
