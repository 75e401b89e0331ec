"""One proof: every rank executes a microbatch of the next slot, and all agree on what came of it.

It is executed in a forked child, from what the other rank has said of it (`replay_trial`). If an
iteration draws its batch in a loop further out, that loop's body is what has to be executed again:
which one gives the right microbatch is tried. Where a forward pass needs other ranks of the
replica, each child stops where data enter the model, and then children of all of them go the whole
way together (`replica_children`). A machine may stand still for seconds: where any child is late,
all are tried once more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.gather_objects import Words, gather
from recoverrun.worker.context.evidence import crc_of_streams
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.context.slot_context import AFTER, Context, key_of, told
from recoverrun.worker.data import worker_seed_check
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import StreamMoves, differing, differing_words
from recoverrun.worker.replay.rank_constants import Tell, seen_by_contexts
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import LEVELS, Microbatch, MicrobatchPlace
from recoverrun.worker.verification import forked_child, replica_children
from recoverrun.worker.verification.drift_check import DriftCheck
from recoverrun.worker.verification.partners import blamed, partner_of
from recoverrun.worker.verification.replay_trial import EMPTY, ReplayTrial, bulk_of
from rendezvous.protocol.messages import Promise

WITHIN_S, LONGER = 10.0, 20
"""So long the child may take, or so many times as long as the microbatch took here."""

UNTRIED = "{loop}: whether another rank's microbatch can be executed here is not known: {why}"

APART = "ranks find a lost rank's microbatch in the bodies of different loops"

AS_BEFORE = "checked before; a child was late this time"


@dataclass(frozen=True, slots=True)
class Proved:
    """The result of a proof on this rank."""

    promise: Promise
    reason: str
    anew: bool = False  # all ranks have executed the right microbatch
    elsewhere: bool = False  # from another loop than before
    undecided: bool = False  # nothing speaks against it but what a rank has done alone


def _told(tops: list[list[bytes]], level: int) -> list[Context]:
    """The contexts in which ranks began the iteration of the loop at that level."""
    return [Context.unpack(one[level]) for one in tops if one[level:] and one[level]]


class MutualProof:
    """All ranks make each proof together."""

    def __init__(
        self, worker: WorkerState, executor: Executor, sources: DataSources, drift: DriftCheck
    ) -> None:
        self._worker = worker
        self._executor = executor
        self._sources = sources
        self._drift = drift

    @property
    def longest_s(self) -> float:
        """The time limit of children of other ranks; their microbatches are not much longer."""
        return 2 * self._within_s()

    def _within_s(self) -> float:
        return max(WITHIN_S, LONGER * self._executor.longest_s)

    def run(
        self, step: int, generation: int, *, followed: bool, shown: bool, anew: int = 0
    ) -> Proved:
        """All ranks enter. `followed`: the other rank is taken from where it ended the transaction
        before; `shown`: the same has been proved some time; `anew`: so many of the loops around a
        microbatch, the inner ones, begin another iteration with each transaction.
        """
        worker, protection = self._worker, self._worker.protection
        microbatch = worker.runtime.microbatches[0]
        tell = partial(gather, protection.fabric, protection.peers, generation)
        others = tell(self._words(step, microbatch, anew))
        hindered = [one["hindered"] for _, one in sorted(others.items()) if one["hindered"]]
        if hindered:
            loop = microbatch.places[0].top.loop.id
            return Proved("equal-count", UNTRIED.format(loop=loop, why=hindered[0]))
        tops = [one["tops"] for one in others.values()]
        names = [*(place.top.names for place in microbatch.places), self._sources.roots()]
        there = holdings(names, worker.runtime.own_modules, items=microbatch.items)
        if not followed:
            self._tell_constants(step, microbatch, there, tell)
            self._drift.learn(tops)
        partner = self._partner()
        least = min(one["anew"] for one in others.values())
        in_use = worker.runtime.outward.get(microbatch.places[0].top.loop.id, 0)
        known = {"generation": generation, "in_use": in_use, "anew": least}
        outward = self._outward(step, microbatch, tops, **known)
        trial = ReplayTrial(
            worker,
            self._executor,
            self._sources,
            self._drift,
            partner=partner,
            said=others[partner],
            step=step,
            microbatch=microbatch,
            followed=followed,
            there=there,
            outward=outward,
        )
        found, level = self._found(trial, tops, step, generation, tell)
        if level is None and outward > in_use and not found["alone"]:
            trial.outward = in_use
            found, level = self._found(trial, tops, step, generation, tell)
        if any(one["workers"] for one in others.values()):
            seeding, traces = self._sources.seeding, found["traces"]
            otherwise = seeding.compare(worker.runtime.sources, partner, traces, tell)
            if otherwise and level is not None:
                return Proved("equal-count", otherwise)
        if level is not None and trial.needs_mates and not found["mates"]:
            why = self._together(trial, found, level, step, generation)
            if why and not (shown and found["late"]):
                return Proved(found["promise"], why, undecided=found["alone"])
        if shown and found["late"]:  # that says nothing against it; the next time tells more
            return Proved("exact-samples", AS_BEFORE)
        if level is None and found["alone"]:
            return Proved("equal-count", str(found["reason"]), undecided=True)
        if level is None:
            self._part(found["tried"], str(found["reason"]))
            return Proved(found["promise"], str(found["reason"]))
        return self._conclude(trial, found, level)

    def _partner(self) -> int:
        """The rank of the next slot that holds the same part of the model."""
        return partner_of(self._worker.protection.layout, self._worker.env.rank)

    def _outward(
        self,
        step: int,
        microbatch: Microbatch,
        tops: list[list[bytes]],
        *,
        generation: int,
        in_use: int,
        anew: int,
    ) -> int:
        """The loop from which executions begin, or from which they are tried first: further out
        where something of the inner loops is computed, step by step, from what ranks do not have
        in common. It need not differ yet, as the number of microbatches in a step may not. Where
        steps share an iteration, only data that differ are a reason: another iteration makes other
        ones, and who is lost before it began has not left those.
        """
        places, mine = microbatch.places, in_use
        influence = self._executor.influence
        contexts = [_told(tops, level) for level in range(min(len(places), LEVELS))]
        drawn = self._drawn(step, microbatch)
        for level in range(in_use + 1, len(contexts)):
            there, loop = contexts[level], places[level].top.loop
            apart = {key for one in there for key in differing(one, there[0])}
            by_step = level < anew and influence.flows(loop, places[0].top.loop, apart)
            inner, within = places[level - 1].top.loop, contexts[level - 1]
            if by_step or influence.renews(loop, there, inner, within, drawn):
                mine = level
        several = len(contexts) - in_use > 1
        return self._worker.protection.vote_group.least(generation, mine) if several else mine

    def _drawn(self, step: int, microbatch: Microbatch) -> tuple[str, ...]:
        """The generators from which this rank's own microbatch drew."""
        top = microbatch.top.context
        after = self._executor.captures.at((step, microbatch.index, AFTER, 0))
        return (
            ()
            if top is None or after is None
            else StreamMoves.between(top, after, False).generators
        )

    def _part(self, tried: Mapping[int, tuple[bool, bool]], reason: str) -> None:
        """If only ranks that came back cannot execute others' microbatches, they leave, and the
        others prove it some other time (Superseded): what they have proved is as true as it was.
        """
        worker = self._worker
        odd = blamed(worker.protection.layout, tried)
        if worker.env.rank in odd:
            withdraw = worker.protection.fabric.withdraw
            assert withdraw is not None, f"came back: {odd}"
            withdraw(reason)
        if odd:
            raise Superseded

    def _conclude(self, trial: ReplayTrial, found: Words, level: int) -> Proved:
        """All ranks have executed the right microbatch from that loop."""
        microbatch = trial.microbatch
        outward, loop = self._worker.runtime.outward, microbatch.places[0].top.loop.id
        elsewhere = outward.get(loop, level) != level
        outward[loop] = level
        self._sources.proved.trust()
        self._executor.constants.settle()
        trial.learn(found["moved"])
        self._adopt(found, microbatch, level)
        praise = trial.praise(microbatch.places[level].top.loop.id)
        return Proved("exact-samples", praise, anew=True, elsewhere=elsewhere)

    def _found(
        self, trial: ReplayTrial, tops: list[list[bytes]], step: int, generation: int, tell: Tell
    ) -> tuple[Words, int | None]:
        """The report of this rank's child, and the loop that all ranks found to be right."""
        worker = self._worker
        found = self._tried(trial)
        level = self._agreed(found, generation)
        if found["late"]:
            found = self._tried(trial)
            level = self._agreed(found, generation)
        alone = found["alone"]  # the same on all ranks; it tells nothing of what they hold
        if (
            level is None
            and not alone
            and worker.protection.vote_group.least(
                generation, int(self._shared(trial, found, tell))
            )
        ):
            found = self._tried(trial)
            level = self._agreed(found, generation)
        if level is None and found["mates"]:
            level = self._found_together(trial, found, tops, step, generation)
        return found, level

    def _tell_constants(
        self, step: int, microbatch: Microbatch, there: Holdings, tell: Tell
    ) -> None:
        """Contexts keep what they see by now, made between two microbatches perhaps."""
        seen: set[tuple[int, str]] = set()
        for place in microbatch.places:
            names = {**place.top.globals, **place.top.names}
            now = self._executor.captures.present(step, microbatch.index, place)
            for context in (place.top.context, now):
                if context is not None:
                    seen |= seen_by_contexts(context.attributes, names)
        worker = self._worker
        own, constants = worker.runtime.own_modules, self._executor.constants
        constants.exchange(there, own, seen, tell)
        self._sources.shares.learn(worker.runtime.sources, constants.apart, own)

    def _together(
        self, trial: ReplayTrial, found: Words, level: int, step: int, generation: int
    ) -> str:
        """The reason why what lies behind the door is wrong, or "". All ranks enter."""
        worker = self._worker
        if not worker.protection.vote_group.least(generation, int(trial.has_mates)):
            keys = sorted(map(key_of, found["immaterial"]), key=str)
            return differing_words(keys, "between steps") if keys else ""
        place = f"recoverrun/proof/{step}/{level}"
        done = self._met(trial, level, generation, place)
        if self._anybody(generation, bool(done["failed"])):
            done = self._met(trial, level, generation, f"{place}/again")
            found["late"] = self._anybody(generation, done["late"])
        if not self._executor.rewrites and self._anybody(generation, done["rewrites"]):
            self._executor.rewrites = True
            done = self._met(trial, level, generation, f"{place}/rewritten")
        found["promise"] = done["promise"]
        found["talked"] = found["talked"] or done["talked"]
        found["moved"] = [*found["moved"], *done["moved"]]
        found["alone"] = done["alone"]
        if not done["reason"]:
            found["immaterial"] = [*found["immaterial"], *done["immaterial"]]
        return str(done["reason"])

    def _anybody(self, generation: int, this_rank: bool) -> bool:
        return not self._worker.protection.vote_group.least(generation, int(not this_rank))

    def _found_together(
        self, trial: ReplayTrial, found: Words, tops: list[list[bytes]], step: int, generation: int
    ) -> int | None:
        """The same where a child that is alone does not come to the door: its code talks to the
        other shards before (an evaluation, a target network).
        """
        for level, noted in enumerate(zip(*tops, strict=False)):
            if level < trial.outward or not all(noted):
                continue
            found["reason"] = self._together(trial, found, level, step, generation)
            found["exact"] = [] if found["reason"] else [level]
            if self._agreed(found, generation) is not None:
                return level
        return None

    def _met(self, trial: ReplayTrial, level: int, generation: int, place: str) -> Words:
        """The result of children that meet at `place`. One that is late makes the others fail."""
        within_s = self._within_s()
        work = partial(trial.work_together, level, place, within_s / 2)
        store = replica_children.relaying(self._worker.store(generation).call)
        return self._done(trial, lambda: forked_child.run_asking(work, within_s, store))

    def _adopt(self, found: Words, microbatch: Microbatch, level: int) -> None:
        """Adopt here what the child has learned."""
        executor, loop = self._executor, microbatch.places[0].top.loop
        for one in self._worker.runtime.microbatches:
            if one.places[0].top.loop is loop:
                one.chosen = level
        if microbatch.top.context is not None:
            executor.captures.include(microbatch.top.context)
        regions = self._worker.runtime.regions
        regions.discard(loop.id)
        regions.add(microbatch.top.loop.id)
        executor.talked |= bool(found["talked"])
        executor.items.fed.update(found["fed"])
        executor.influence.shown(microbatch.top.loop.id, map(key_of, found["immaterial"]))

    def _words(self, step: int, microbatch: Microbatch, anew: int) -> Words:
        worker = self._worker
        captures = self._executor.captures
        after = captures.at((step, microbatch.index, AFTER, 0))
        before = [one for one in captures.points if one.kind == "after" and one.step < step]
        places = microbatch.places[:LEVELS]
        return {
            "tops": [p.top.context.pack() if p.top.context else b"" for p in places],
            "before": before[-1].pack() if before else b"",
            "shown": [[list(mark), door] for mark, door in microbatch.shown[:LEVELS]],
            "gradient": microbatch.gradient,
            "end": crc_of_streams(after.streams) if after is not None else 0,
            "ends": [self._end(step, microbatch, place, after) for place in places],
            "bulk": {**bulk_of(microbatch), **self._sources.bulk()},
            "workers": worker_seed_check.has_workers(worker.runtime.sources),
            "hindered": forked_child.hindrance(),
            "anew": anew,
        }

    def _end(
        self, step: int, microbatch: Microbatch, place: MicrobatchPlace, after: Context | None
    ) -> bytes:
        """This rank's context at the end of the microbatch, as the loop of `place` sees it."""
        if microbatch is self._worker.runtime.microbatches[-1]:
            after = self._executor.captures.present(step, microbatch.index, place)
        return after.pack() if after is not None and after.loop == place.top.loop.id else b""

    def _tried(self, trial: ReplayTrial) -> Words:
        return self._done(trial, lambda: forked_child.run(trial.work, self._within_s()))

    def _done(self, trial: ReplayTrial, work: Callable[[], Words]) -> Words:
        """The words of the child; if it fails, the reason."""
        try:
            found, late = work(), False
        except forked_child.ChildFailed as problem:
            found, late = {"failed": str(problem)}, isinstance(problem, forked_child.ChildLate)
        why = found.get("failed")
        if why:
            loop = trial.microbatch.places[0].top.loop.id
            reason = f"{loop}: rank {trial.partner}'s microbatch cannot be executed: {why}"
            return {**EMPTY, "reason": reason, "failed": why, "late": late}
        return found

    def _agreed(self, found: Words, generation: int) -> int | None:
        """The loop from which all ranks have executed the right microbatch, if there is one."""
        protection = self._worker.protection
        fabric, channel = protection.fabric, protection.vote_group.channel
        told_of = ("exact", "immaterial", "rewrites", "late", "mates", "alone", "reason")
        mine = {name: found[name] for name in told_of}
        mine["back"] = fabric.withdraw is not None
        said = gather(fabric, channel, generation, mine)
        self._executor.rewrites |= any(one["rewrites"] for one in said.values())
        for name in ("late", "mates"):
            found[name] = any(one[name] for one in said.values())
        found["tried"] = {rank: (bool(one["exact"]), one["back"]) for rank, one in said.items()}
        wrong = [one for _, one in sorted(said.items()) if not one["exact"]]
        found["alone"] = bool(wrong) and all(one["alone"] for one in wrong)
        common = set.intersection(*(set(one["exact"]) for one in said.values()))
        if not common:
            reasons = [one["reason"] for one in sorted(wrong, key=lambda one: bool(one["alone"]))]
            found["reason"] = next(filter(None, reasons), APART)
        immaterial = {key_of(key) for one in said.values() for key in one["immaterial"]}
        found["immaterial"] = [told(key) for key in sorted(immaterial, key=str)]
        return min(common, default=None)

    def _shared(self, trial: ReplayTrial, found: Words, tell: Any) -> bool:
        """True if all ranks now know what others hold otherwise: one more try is worth it."""
        different = {key_of(key) for key in found["different"]}
        heard = tell({"different": [told(key) for key in sorted(different, key=str)]})
        keys = {key_of(key) for one in heard.values() for key in one["different"]}
        if not keys:
            return False
        top, shares = trial.microbatch.places[0].top, self._executor.shares
        mine = shares.own(keys, {**top.globals, **top.names})
        given = tell({"shares": mine})
        theirs = {rank: one["shares"] for rank, one in given.items()}
        known = shares.hear(theirs, self._worker.env.rank)
        return all(one["known"] for one in tell({"known": known}).values())
