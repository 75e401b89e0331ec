"""One microbatch of another rank, executed in a forked child by what that rank has said of it.

Loops around its backward are tried from the inside outwards, from the one that is in use on, or
from one in which something is computed for the inner ones (`mutual_proof`): which one's body gives
the right microbatch is what the child finds out, and what of the other rank it could do without
(`proofs`).
"""

from collections.abc import Iterable
from functools import partial

import torch

from ft_collectives.communicators.gather_objects import Words
from recoverrun.worker.context.evidence import Mark, crc_of_streams
from recoverrun.worker.context.fingerprints import is_mark, marks
from recoverrun.worker.context.object_contents import KeptContents
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.slot_context import ATTRIBUTE_TENSOR_BYTES, Context, Key, last, told
from recoverrun.worker.data import worker_seed_check
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.earlier_transactions import Weights, trained
from recoverrun.worker.replay.executed import TALKS, Executed, Misled
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import (
    KnownState,
    differing,
    differing_words,
    ended_otherwise,
    named,
)
from recoverrun.worker.replay.local_shards import unlike
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.replay.poison import HIGH, LOW, NOT_A_NUMBER
from recoverrun.worker.step import parameter_checksum
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import LEVELS, Microbatch
from recoverrun.worker.verification import replica_children
from recoverrun.worker.verification.drift_check import DriftCheck
from recoverrun.worker.verification.forked_child import Ask
from recoverrun.worker.verification.trial_words import (
    CAUSES,
    DATA,
    GRADIENT,
    LOSS,
    MOVED,
    NUMBERS,
    OTHER_END,
    TRACE,
    WRITES,
)

EMPTY: Words = {
    "exact": [], "promise": "equal-count", "reason": "", "talked": False, "fed": {},
    "immaterial": [], "different": [], "rewrites": False, "alone": False,
    "mates": False, "moved": [], "failed": "", "late": False,  # of a child that came to no verdict
    "traces": {"seen": [], "mine": []},
}  # fmt: skip


class ReplayTrial:
    """The execution of one microbatch of `partner`, by what that rank has `said` of it."""

    def __init__(
        self,
        worker: WorkerState,
        executor: Executor,
        sources: DataSources,
        drift: DriftCheck,
        *,
        partner: int,
        said: Words,
        step: int,
        microbatch: Microbatch,
        followed: bool,
        there: Holdings,
        outward: int,
    ) -> None:
        """`outward`: of the loops around the backward, the first that is tried."""
        self._worker = worker
        self._executor = executor
        self._sources = sources
        self._drift = drift
        self.partner = partner
        self._said = said
        self._step = step
        self.microbatch = microbatch
        self._followed = followed
        self.outward = outward
        self._door = 0  # of the execution that was right
        strategy, layout = worker.protection.strategy, worker.protection.layout
        self._strategy = strategy
        self._by_itself = self._whole = strategy.alone and layout.shards == 1
        self._mates = replica_children.inside(layout)
        self._needed = False  # an execution has come to what only mates can do together
        self._alone = False  # the partner drew in code for it alone, before its microbatch
        self._threads = torch.get_num_threads()
        self._held = there.objects

    @property
    def needs_mates(self) -> bool:
        """True if only the ranks of a replica together can execute what lies behind the door."""
        return not self._whole

    @property
    def has_mates(self) -> bool:
        """True if children of theirs can meet."""
        return replica_children.can_meet(self._mates)

    def praise(self, loop: str) -> str:
        what = "the identical gradient"
        if not (self._whole or self.has_mates):
            what = "identical inputs and random numbers (its forward pass needs the other shards)"
        elif self._threads > 1:
            what = "identical inputs and random numbers (sums of several threads differ in a copy)"
        elif not self._said["gradient"]:
            what = "identical inputs, random numbers and loss"
        return f"{loop}: checked: replaying rank {self.partner}'s microbatch gave {what}"

    def work(self) -> Words:
        """Find the loop whose body it is, in a child that is alone, as far as one rank can tell."""
        worker, executor = self._worker, self._executor
        self._begin()
        if not self._whole:
            replica_children.part(self._mates)
        found = {**EMPTY, "exact": [], "immaterial": []}
        kept = KeptContents(self._held)
        parameters = parameter_checksum.of(self._strategy)
        for level, place in enumerate(self.microbatch.places[:LEVELS]):
            self.microbatch.chosen = level
            known = place.top.context is not None and self._said["tops"][level]
            if level < self.outward or not known:
                continue
            weights = Weights(trained(executor.optimizers))
            why, unknown = self._try(level)
            if self._needed:
                found["mates"], found["reason"] = True, why
                break
            if parameter_checksum.of(self._strategy) != parameters and not executor.rewrites:
                weights.restore()
                executor.rewrites = True
                why, unknown = self._try(level)
            if parameter_checksum.of(self._strategy) != parameters:
                found["promise"], found["reason"] = "unprotected", WRITES.format(place.top.loop.id)
                break
            found["moved"] = self._put_back(kept)
            if not why and self._leaves_a_trace():
                found["promise"], found["reason"] = "unprotected", TRACE.format(place.top.loop.id)
                break
            if not why:
                found["exact"].append(level)
                found["immaterial"] = [told(key) for key in sorted(unknown, key=str)]
                break
            found["reason"] = found["reason"] or why
            if self._alone:  # it tells nothing of this loop, and so not that it is one further out
                break
        found["talked"], found["fed"] = executor.talked, executor.items.fed
        found["alone"] = self._alone and found["promise"] != "unprotected"
        found["rewrites"] = executor.rewrites
        found["different"] = [told(key) for key in sorted(self._different(), key=str)]
        found["traces"] = worker_seed_check.observe(worker.runtime.sources, self.partner)
        return found

    def work_together(self, level: int, place: str, within_s: float, ask: Ask) -> Words:
        """Prove all of the body that begins at that level, in a child that meets those of the other
        ranks of its replica.
        """
        worker, executor = self._worker, self._executor
        self._begin()
        self._whole, self.microbatch.chosen = True, level
        replica_children.meet(
            self._mates,
            ask,
            rank=worker.env.rank,
            generation=worker.protection.fabric.view.generation,
            place=place,
            within_s=within_s,
        )
        kept = KeptContents(self._held)
        parameters, known = parameter_checksum.of(self._strategy), executor.rewrites
        why, unknown = self._try(level)
        rewrites = parameter_checksum.of(self._strategy) != parameters
        if rewrites and known:
            why = WRITES.format(self.microbatch.top.loop.id)
        return {
            **EMPTY,
            "exact": [] if why else [level],
            "promise": "unprotected" if rewrites and known else "equal-count",
            "reason": why,
            "alone": self._alone,
            "rewrites": rewrites,
            "talked": executor.talked,
            "immaterial": [told(key) for key in sorted(unknown, key=str)],
            "moved": self._put_back(kept),
        }

    def _put_back(self, kept: KeptContents) -> list[int]:
        """The objects of this process that an execution has left changed; no more does it."""
        moved = kept.changed()
        kept.put_back()
        self.learn(moved)
        return moved

    def learn(self, moved: Iterable[int]) -> None:
        """An execution moves these, in a copy of this process: they are put back each time."""
        known = set(map(id, self._executor.moved))
        for place in moved:
            if id(self._held[place]) not in known:
                self._executor.moved.append(self._held[place])

    def _begin(self) -> None:
        runtime = self._worker.runtime
        runtime.mode.tries()
        worker_seed_check.forget(runtime.sources, self.partner)
        self._worker.failpoints.disarm()
        self._sources.proved.trust()
        self._executor.constants.settle()

    def _try(self, level: int) -> tuple[str, frozenset[Key]]:
        """The reason why level `level` does not give the partner's microbatch, or "", and what was
        unknown.
        """
        executor, mine = self._executor, self.microbatch.top.context
        assert mine is not None, "captured"
        executor.captures.include(mine)
        executor.influence.top = self.microbatch.top
        executor.proves, executor.only_inputs = True, not self._whole
        kept = self._strategy.set_aside()
        try:
            lost, unknown = self._partner(level)
            executor.lost[self.partner] = lost
            state = lost.at(mine.point, executor.captures.points)
            if self._followed:
                executor.influence.shown(self.microbatch.top.loop.id, unknown)
            why = self._otherwise(state, level)
            heard = bool(why) and self._hears(state)
            return why and self._explained(why, unknown, heard=heard), unknown
        except NotReplayable as reason:
            self._needed = isinstance(reason, replica_children.NeedsMates)
            return str(reason), frozenset()
        finally:
            self._strategy.put_back(kept)
            executor.proves = executor.only_inputs = False

    def _otherwise(self, state: KnownState, level: int) -> str:
        """The difference from the partner's microbatch, whatever the ranks tell each other, or "".

        What takes no NaN for a result (`if not isfinite(loss): sys.exit(1)`) is judged by others
        alone, and what is compared with a threshold heeds no NaN.
        """
        executor, why = self._executor, ""
        try:
            for answer in (NOT_A_NUMBER, LOW, HIGH):
                executor.answer = answer
                try:
                    done = executor.execute(self.partner, state, self._step, self.microbatch)
                except Misled:
                    if answer != NOT_A_NUMBER:
                        raise
                    continue
                self._door = done.door
                why = why or self._unlike(done, *self._said["shown"][level])
                if not executor.talked or (why and answer == NOT_A_NUMBER):
                    break
        finally:
            executor.answer = LOW
        return why

    def _partner(self, level: int) -> tuple[LostRank, frozenset[Key]]:
        """The state of the partner, and what of it would not be known if it were lost."""
        executor, own = self._executor, self._executor.captures
        there = Context.unpack(self._said["tops"][level])
        mine = self.microbatch.places[level].top.context
        assert mine is not None, "captured"
        lost = LostRank(self.partner, apart=self._worker.runtime.gate.apart_from(self.partner))
        before = Context.unpack(self._said["before"]) if self._said["before"] else None
        mine_before = own.at(before.point) if before is not None else None
        follows = mine_before is not None and mine_before.point < mine.point
        if not self._followed or before is None or mine_before is None or not follows:
            lost.learn(there, mine)
            return lost, frozenset()
        self._drift.informs(lost)
        lost.led = partial(self._worker.runtime.gate.has_done, self.partner)
        self._alone |= there.streams.private != before.streams.private
        lost.learn(before, mine_before)
        lost.loops.add(mine.loop)
        state = lost.at(mine.point, own.points)
        # What came into being between the two is taken for common to both ranks.
        mistaken = (key for key in differing(there, state.context) if not is_mark(last(key)))
        values, matters = mine.values, executor.influence.matters
        unknown = {key for key in (*state.unknown, *mistaken) if key in values}
        return lost, frozenset(key for key in unknown if matters(key, values[key]))

    def _unlike(self, done: Executed, mark: tuple[int, int], door: int) -> str:
        """The difference from the partner's microbatch, which left these, or ""."""
        said, one_thread = self._said, self._threads == 1
        noted = bool(mark[0])  # its model may not have been known before it trained
        if noted and done.door != door:
            same = done.mark[0] == mark[0]
            return NUMBERS if same else DATA
        if not self._whole:
            return ""
        if noted and done.mark[0] != mark[0]:
            return DATA
        if one_thread and mark[1] and done.mark[1] != mark[1]:
            return LOSS
        assert done.after is not None, "it came to its end"
        if crc_of_streams(done.after.streams) != said["end"]:
            return NUMBERS
        if one_thread and said["gradient"] and self._strategy.digest() != said["gradient"]:
            return GRADIENT
        return self._ended(done.after)

    def _ended(self, after: Context) -> str:
        """The difference between where the execution ended and where the partner did, or ""."""
        executor, level = self._executor, self.microbatch.chosen
        began, packed = self._said["tops"][level], self._said["ends"][level]
        if not (began and packed):
            return ""
        theirs = Context.unpack(began), Context.unpack(packed)
        matters = executor.influence.matters
        keys = ended_otherwise(after, *theirs, matters, talked=executor.talked)
        return OTHER_END.format(", ".join(map(named, keys[:3]))) if keys else ""

    def _hears(self, state: KnownState) -> bool:
        """True if the microbatch depends on what the ranks tell each other, so that other answers
        make it another one. Mates, who would have to try that together, take it for granted.
        """
        executor = self._executor
        if not executor.talked or not self._by_itself:
            return executor.talked
        made = set[tuple[Mark, int]]()
        try:
            for executor.answer in (HIGH, LOW):
                done = executor.execute(self.partner, state, self._step, self.microbatch)
                made.add((done.mark, self._strategy.digest()))
        except Misled:
            return True
        finally:
            executor.answer = LOW
        return len(made) > 1

    def _explained(self, what: str, unknown: frozenset[Key], *, heard: bool) -> str:
        if heard:
            return TALKS
        loop = self.microbatch.top.loop.id
        if unknown:
            return differing_words(sorted(unknown, key=str), "between steps")
        why = CAUSES.get(what, MOVED)
        apart = unlike(self._sources.bulk(), self._said["bulk"])
        if different := sorted(map(named, self._different() or apart)):
            names = ", ".join(name.removesuffix("#") for name in different[:3])
            why = f"rank {self.partner} holds other data in {names} than this rank"
        return f"{loop}: replaying rank {self.partner}'s microbatch here, {what}: {why}"

    def _different(self) -> set[Key]:
        """Large data of the partner that are not ours, by their marks."""
        there = Context.unpack(self._said["tops"][0]) if self._said["tops"][0] else None
        mine = self.microbatch.places[0].top.context
        found = set(unlike(bulk_of(self.microbatch), self._said["bulk"]))
        if there is not None and mine is not None:
            found |= unlike(mine.attributes, there.attributes)
        return found

    def _leaves_a_trace(self) -> bool:
        """True if the same microbatch, executed once more, comes out otherwise."""
        executor = self._executor
        executor.proves = executor.only_inputs = True
        kept = self._strategy.set_aside()
        try:
            top = self.microbatch.top.context
            assert top is not None, "captured"
            state = executor.lost[self.partner].at(top.point, executor.captures.points)
            done = executor.execute(self.partner, state, self._step, self.microbatch)
            return done.door != self._door
        except NotReplayable:
            return True
        finally:
            self._strategy.put_back(kept)
            executor.proves = executor.only_inputs = False


def bulk_of(microbatch: Microbatch) -> dict[str, str]:
    """Marks of large data among the variables that a microbatch reads, its own item aside."""
    top = microbatch.places[0].top
    visible = {**top.globals, **top.names}
    names = visible.keys() & top.loop.live_in - top.loop.targets
    read = {name: visible[name] for name in sorted(names)}
    return marks(read, ATTRIBUTE_TENSOR_BYTES)
