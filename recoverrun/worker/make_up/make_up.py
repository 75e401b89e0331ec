"""The agreement of all survivors on the microbatches that they make up for lost slots.

Each survivor executes those that it was given (`microbatch_maker`). Before the transaction is
reduced, all survivors tell each other where the lost ranks stand now. Starts that
had been assumed are compared with what was told; where they differ, the microbatch is executed
again. What cannot be told, or comes out otherwise, is made up with fresh data: the transaction
still has its B microbatches, and the run says that from here on its promise is `equal-count`.
"""

from dataclasses import replace

from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.vote import INPUTS_MASK, Tally
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.make_up import arrival_proof
from recoverrun.worker.make_up.audits import Audits
from recoverrun.worker.make_up.deadly_microbatches import microbatch_id_of
from recoverrun.worker.make_up.distinct_inputs import DOUBLED, DistinctInputs
from recoverrun.worker.make_up.kept_work import KeptWork
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.microbatch_maker import MicrobatchMaker
from recoverrun.worker.make_up.repeated_inputs import STAYED, RepeatedInputs
from recoverrun.worker.make_up.told_positions import End, Start, ToldPositions
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import unpack_lacking
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.views import Identity

FRESH, AGAIN, WHOLE, AUDIT = range(4)
"""What has to become of the microbatches that were made up, the worst of them first; where they are
whole on all ranks, one of them may have to be audited.
"""

ENDLESS = "it is unknown where rank {rank}'s microbatch {index} of step {step} begins"


class MakeUp:
    """The microbatches that this rank makes up for lost ones."""

    def __init__(
        self,
        worker: WorkerState,
        executor: Executor,
        left: LeftContexts,
        maker: MicrobatchMaker,
    ) -> None:
        self._worker = worker
        self._executor = executor
        self._left = left
        self.maker = maker
        self._folded: set[Identity] = set()  # made-up microbatches that reducers have
        self._positions = ToldPositions(worker, executor, left)
        self._audits = Audits(worker, executor)
        self._kept_work = KeptWork(worker, executor, left, maker)
        self._executors: dict[tuple[int, int], int] = {}  # lost rank, index -> its executor
        self._distinct = DistinctInputs()
        self._repeated = RepeatedInputs()
        self._own: dict[int, list[int]] = {}  # digests of inputs, by survivor
        self._doubled = ""  # a microbatch that another survivor has executed is not believed
        self._undecided = False  # others' starts are not those that this rank would have assumed

    def learned(self) -> bool:
        """True if survivors tell each other where lost ranks stand."""
        return self.maker.telling

    def learn(self, learned: bool) -> None:
        """Learn what the others do, in a process that takes a lost rank's place."""
        self.maker.telling = learned

    def compute(self, identity: Identity) -> None:
        """Make up one microbatch of a lost slot. Raises what the script's own code raises."""
        self.maker.compute(identity)

    @property
    def inputs(self) -> int:
        """A digest of the inputs of this rank's first microbatch, 0 if it has none."""
        own = self.maker.own_all
        return own[0].inputs & INPUTS_MASK if own else 0

    def hear(self, tally: Tally) -> None:
        """Note the inputs of all ranks at this place of their replicas."""
        worker, own = self._worker, self.maker.own_all
        if worker.lost or not own or not tally.inputs:
            return
        layout = worker.protection.layout
        _, position = layout.place(worker.env.rank)
        peers = [replica[position] for replica in layout.replicas]
        told = {one: tally.inputs[one] for one in peers if one in tally.inputs}
        self._distinct.note(own[0], told.values())
        self._repeated.note(worker.step, own[0], told)

    # --------------------------------------------------------------------------- telling

    def tell(self, generation: int) -> None:
        """Agree with all survivors on where lost ranks stand, before gradients are reduced.

        Superseded if `generation` ends first.
        """
        worker = self._worker
        if not worker.lost:
            return
        if worker.joining:
            arrival_proof.compare_counts(worker, generation)
        if worker.joining and self.maker.telling:
            proved = arrival_proof.prove(worker, self._executor, generation, self.maker.aside)
            self._left.trust(proved)
        rounds = 0
        while self.maker.telling:
            ends, starts = self._exchange(generation)
            bad = self._bad(ends, self._positions.begun(starts), rounds)
            whole = AUDIT if self._executors and self._audits.due else WHOLE
            if self._undecided and rounds <= len(self.maker.own_all):
                whole = AGAIN  # the executor says in the next round if it has begun rightly
            worst = min(bad.values(), default=whole) if self._left.exact else FRESH
            verdict = worker.protection.vote_group.least(generation, worst)
            if verdict == AUDIT:
                verdict, bad = self._audited(generation)
            if verdict == WHOLE:
                break
            self._mend(generation, verdict, bad)
            rounds += 1
        for identity, made in sorted(self.maker.made.items()):
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
        ends = [end for one in self.maker.made.values() if (end := self._positions.end_of(one))]
        said = {"ends": ends, "starts": self._positions.starts()}
        said |= {"buffers": self.maker.buffers.told(self.maker.made)}
        said |= {"own": [one.inputs for one in self.maker.own_all]}
        heard = gather(protection.fabric, protection.peers, generation, said)
        self.maker.buffers.hear({rank: one["buffers"] for rank, one in heard.items()})
        self._own = {rank: one["own"] for rank, one in heard.items()}
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
            generation, self._executors, self.maker.made, self.maker.aside, self.maker.guessed
        )
        verdict = self._worker.protection.vote_group.least(generation, FRESH if why else WHOLE)
        bad = self.maker.made.keys() & audited if why else set()
        for identity in bad:
            self.maker.made[identity].failed = why
        return verdict, dict.fromkeys(bad, FRESH)

    def _bad(self, ends: list[End], news: set[int], rounds: int) -> dict[Identity, int]:
        """Learn where lost ranks have ended. What this rank has made up that is not right."""
        for rank in sorted({end[0] for end in ends}):
            self._left.absorb_of(rank)
        step, wrong, told = self._worker.step, set[tuple[int, int]](), set[tuple[int, int]]()
        doubled: dict[Identity, str] = {}
        for rank, index, packed, assumed, digest, words, inputs in ends:
            if assumed and not self._positions.starts_there(rank, index, digest):
                wrong.add((rank, index))
            else:
                told.add((rank, index))
                doubled |= self._not_its_own(rank, index, *inputs)
                self.maker.learn(rank, Context.unpack(packed), unpack_lacking(words), assumed=False)
        # What this rank holds may tell it less of the lost one than the executor knows.
        own = {(made.rank, identity[1]) for identity, made in self.maker.made.items()}
        self._undecided = not wrong <= own
        self._doubled = next(iter(doubled.values()), "")
        found = dict.fromkeys(doubled, FRESH)
        for identity, made in self.maker.made.items():
            made.failed = made.failed or doubled.get(identity, "")
            if made.start is not None and made.start.assumed and not made.failed:
                if (made.rank, identity[1]) in wrong and rounds <= len(self.maker.own_all):
                    found[identity] = AGAIN
                elif (made.rank, identity[1]) in wrong:
                    made.failed = ENDLESS.format(rank=made.rank, index=identity[1], step=step)
                else:
                    made.start = replace(made.start, assumed=False)
                    made.failed = self.maker.disproved(made, step)
            if made.failed:
                # If its start was not known, those that executed the microbatch before may have
                # told it by now: one more microbatch in each round.
                known = made.start is not None and not made.start.assumed
                before = any((made.rank, index) in told for index in range(identity[1]))
                later = before and not known and rounds <= len(self.maker.own_all)
                later = later and not self._left.deaths.objection(microbatch_id_of(step, identity))
                again = later or made.rank in news
                found[identity] = AGAIN if again else FRESH
            elif made.rank in news and not rounds:  # executed from where it did not stand
                found[identity] = AGAIN
        return found

    def _not_its_own(self, rank: int, index: int, inputs: int, noted: bool) -> dict[Identity, str]:
        """The reason not to believe the microbatch of lost `rank` that has these `inputs`, if any,
        by its identity. What that rank itself has `noted` is believed.
        """
        worker, own = self._worker, self.maker.own_all
        if index >= len(own):
            return {}
        twin = self._distinct.twin(own[index], inputs, self._own)
        stays = self._repeated.stays(worker.step, own[index], rank, inputs, self._own)
        if noted or (twin is None and not stays):
            return {}
        why = STAYED if twin is None else DOUBLED
        words = why.format(rank=rank, index=index, step=worker.step, other=twin)
        return {(worker.protection.layout.slot(rank), index): words}

    def _mend(self, generation: int, verdict: int, bad: dict[Identity, int]) -> None:
        """All survivors do again what has to be, as any rank of a replica says."""
        worker = self._worker
        protection = worker.protection
        failed = [one.failed for one in self.maker.made.values() if one.failed]
        failed += [self._doubled] if self._doubled else []
        mine = {
            "why": failed[:1],
            "fresh": [list(one) for one, what in bad.items() if what == FRESH],
            "again": [list(one) for one, what in bad.items() if what == AGAIN],
        }
        heard = gather(protection.fabric, protection.vote_group.channel, generation, mine)
        fresh = {(s, i) for one in heard.values() for s, i in one["fresh"]}
        again = {(s, i) for one in heard.values() for s, i in one["again"]} - fresh
        if verdict == FRESH:
            self.maker.telling = False
            others = [words for one in heard.values() for words in one["why"]]
            worker.guarantee.weaken(next(iter(failed + others), ""))
        for identity in sorted(self.maker.made.keys() & (fresh | again)):
            made = self.maker.made[identity]
            with worker.timing.measure("redo"):
                if identity in again and self.maker.may_execute(made):
                    self.maker.execute(made)
                # With mates, in whatever way each of them is at it.
                together = protection.layout.shards > 1
                if identity in fresh or not self._left.exact:
                    if together or not made.fresh:
                        self.maker.freshly(made)
                    made.failed = ""
                elif made.executed is None and together:
                    self.maker.freshly(made)

    def applies(self, step: int) -> None:
        """The transaction is committed, with the work of lost ranks that all have."""
        self._kept_work.find_ends(step)

    def end_step(self, step: int) -> None:
        """The sums of the transaction are delivered."""
        self.maker.buffers.committed(step)
        self.maker.made.clear()
        self._folded.clear()
        self._worker.runtime.gate.begin_anew()
        self._left.absorb()
        self._left.ended()
        lost = sorted(self._executor.lost)
        self._audits.committed(step, lost)
        self.maker.doubts.committed()
        begun = [
            loop_frame.top.context
            for loop_frame in self._worker.runtime.under_way()
            if loop_frame.top
        ]
        for lost_rank in self._executor.lost.values():
            lost_rank.forget((step, 0, 0, 0), {top.point for top in begun if top is not None})
