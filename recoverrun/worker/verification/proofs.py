"""Proof that another rank's microbatches can be executed here, before anybody is lost.

At the end of the first transaction every rank executes the first microbatch of the next slot, from
the context that this slot's rank captured, in a forked child (`forked_child`); and so it does once
more at the end of the second, from where it would take that rank to stand by what that had at the
end of the first (`lost_rank`). It compares what enters the model, the random streams there, the
loss and the gradient with what that rank noted of its own. A loop, or a backward in it, that comes
later is proved as the first one was. Where a forward pass needs other ranks of the replica, each
child stops where data enter the model, and then children of all of them go the whole way together
(`replica_children`). On an accelerator, which no child touches, the forward is taken to be a
function of what enters it. A machine may stand still for seconds: where any child is late, all are
tried once more.

If an iteration draws its batch in a loop further out, that loop's body is what has to be executed
again: which one gives the right microbatch is tried. What cannot be re-executed is protected in
`equal-count` mode or not at all, never run wrongly.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.gather_objects import Words, gather
from ft_collectives.step.vote import Booth, Tally
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.context.slot_context import AFTER, key_of, told
from recoverrun.worker.data.worker_seed_check import has_workers
from recoverrun.worker.rank0 import shared_values
from recoverrun.worker.replay.lost_rank import parted
from recoverrun.worker.replay.rank_constants import Tell, seen_by_contexts
from recoverrun.worker.tracking.loop_tracker import LEVELS, Microbatch, Place, Top
from recoverrun.worker.verification import exact_mode, forked_child, replica_children
from recoverrun.worker.verification.evidence import crc_of_streams
from recoverrun.worker.verification.replay_trial import EMPTY, Trial, bulk_of
from rendezvous.coordinator.guarantees import WEAKEST_FIRST
from rendezvous.protocol.messages import Promise

if TYPE_CHECKING:
    from recoverrun.worker.step.driver import Session

WITHIN_S, LONGER = 10.0, 20
"""So long the child may take, or so many times as long as the microbatch took here."""


UNEQUAL = "ranks take unequally many microbatches to one reduction: {}"


ALONE = (
    "{}: ranks took different ways through the script to transaction {}, and the microbatches of "
    "this one cannot be compared with any of theirs"
)

AGAIN, EVERY = 4, 512
"""Transactions until what has been proved is proved again, and from then to the next time at most:
code may come to what it has not executed so far.
"""

NOTHING, PROVED, FIRST, SECOND = range(4)  # words of a vote: what is to be proved after it


def agreed(said: tuple[int, ...]) -> Literal["prove", "part", "go on"]:
    """What so many ranks for each word do together; nobody enters a proof that others do not."""
    if said[NOTHING] or not said[FIRST] + said[SECOND]:
        return "go on"
    return "part" if said[PROVED] else "prove"


UNSAID = "another rank says why"
AS_BEFORE = "checked before; a child was late this time"

Program = tuple[str, int]
"""The loop around a backward, and which one of its backwards it is."""


class Verification:
    """Asks all ranks to prove, and concludes what the run promises."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._begun: set[Program] = set()  # executed as they first ran
        self._followed: set[tuple[Program, int]] = set()  # across so many loops
        self._shown: set[tuple[Program, int]] = set()  # some time
        self._again = AGAIN  # the transaction that is proved although its like has been shown
        self._before: tuple[Place, ...] = ()  # of the transaction before, its last microbatch
        self._tally: Tally | None = None  # of the vote on the transaction that commits

    # --------------------------------------------------------------------------- before anything

    def fitness(self, fabric: Fabric, booth: Booth) -> str:
        """Why this script cannot be served, as all ranks find it, or ""."""
        session, runtime = self._session, self._session.runtime
        why = session.refusal
        if not runtime.microbatches:
            why = why or runtime.why_no_loop()
        elif all(place.refusal for place in runtime.microbatches[0].places):
            why = why or runtime.microbatches[0].place.refusal
        strategy = session.strategy
        assert strategy is not None, "served"
        mine = {"refusal": why, "count": len(runtime.microbatches), "terms": strategy.terms}
        said = gather(fabric, booth.channel, fabric.view.generation, mine)
        refused = [one["refusal"] for _, one in sorted(said.items()) if one["refusal"]]
        if refused:
            return str(why or refused[0])
        if len({one["terms"] for one in said.values()}) > 1:
            return strategy.unlike
        counts = {rank: one["count"] for rank, one in said.items()}
        if len(set(counts.values())) > 1:
            words = ", ".join(f"{count} on rank {rank}" for rank, count in sorted(counts.items()))
            return UNEQUAL.format(words)
        return ""

    def first(self) -> None:
        """The first transaction is over: what does this run promise?"""
        session = self._session
        fabric = session.fabric
        assert fabric is not None, "protected"
        generation = fabric.view.generation
        last = session.runtime.microbatches[-1]
        with fabric.patience.lenient(self._longest_s()):
            promise, reason = self._prove(0, generation, _program(last), 0)
        self._before = last.places
        if promise == "exact-samples":  # before any rank can know that all have promised
            self._leave()
        weakest = self._everybody(generation, promise)
        if weakest != "unprotected":
            shared_values.exchange(session, generation)
        self._conclude(weakest, promise, reason)

    def _leave(self) -> None:
        """Leave where this rank stands after this transaction, for successors, and where it began
        from the loop that has been chosen.
        """
        session, microbatches = self._session, self._session.runtime.microbatches
        top = microbatches[0].top.context
        assert top is not None, "executed from there"
        session.remnants.top(top)
        captures, step = session.impersonator.captures, top.step
        session.remnants.after(captures.after(step, microbatches[-1]))

    def committed(self) -> None:
        """A transaction is committed; those of a new kind are proved, if all ranks do so."""
        session, (tally, self._tally) = self._session, (self._tally, None)
        microbatches = session.runtime.microbatches
        if tally is None or session.lost or session.fabric is None or not microbatches:
            return
        will, wanted = agreed(tally.said), self._wanted()
        if will == "part":
            self._part()
        self._before = microbatches[-1].places
        if will == "go on":
            session.impersonator.proving = session.step >= self._again
        if session.step >= self._again:
            self._again = session.step + min(session.step, EVERY)
            self.renew()
        if will != "prove" or wanted is None:
            return
        level = microbatches[0].chosen
        generation = session.fabric.view.generation
        begun, followed = set(self._begun), set(self._followed)
        try:
            with session.fabric.patience.lenient(self._longest_s()):
                promise, reason = self._prove(session.step - 1, generation, *wanted)
            weakest = self._everybody(generation, promise)
        except Superseded:
            self._begun, self._followed = begun, followed  # it shows when it matters, or later
            return
        self._conclude(weakest, promise, reason)
        if microbatches[0].chosen != level:
            self._leave()

    def _wanted(self) -> tuple[Program, int] | None:
        """What the present transaction is that no proof has shown yet."""
        microbatches = self._session.runtime.microbatches
        program, crossed = _program(microbatches[-1]), self._crossed(microbatches[0].places)
        known = program in self._begun and (program, crossed) in self._followed
        return None if known else (program, crossed)

    def _crossed(self, places: tuple[Place, ...]) -> int:
        """Of the loops around a microbatch, how many began another iteration since the transaction
        before: the inner ones.
        """
        same = {id(place.top) for place in self._before}
        return next((n for n, place in enumerate(places) if id(place.top) in same), len(places))

    def wants(self, top: Top) -> bool:
        """True if an iteration of a loop around those that are executed again may have to be tried
        instead: nobody has been followed into another one of it yet.
        """
        around = [place.top.loop.id for place in self._before[:LEVELS]]
        if top.loop.id not in around:
            return not self._before
        outward = around.index(top.loop.id)
        return not any(crossed > outward for _, crossed in self._followed)

    def renew(self) -> None:
        """More is known not to be common to all ranks: does anything depend on it?"""
        self._followed.clear()

    def word(self) -> int:
        """What this rank would do once the transaction is committed, for all to hear."""
        session = self._session
        if not session.guarantee.exact or session.lost or not session.runtime.microbatches:
            return NOTHING
        wanted = self._wanted()
        if wanted is None:
            return PROVED
        return SECOND if wanted[0] in self._begun else FIRST

    def hear(self, tally: Tally) -> None:
        """What all of them would do."""
        self._tally = tally

    def _part(self) -> None:
        """Some ranks have trained in a loop that others did not: nobody can compare."""
        session = self._session
        loop, _ = _program(session.runtime.microbatches[-1])
        own = self.word() in (FIRST, SECOND)
        reason = ALONE.format(loop, session.step - 1)
        session.guarantee.weaken(reason, said=own)
        exact_mode.insist(session, "equal-count", reason if own else UNSAID)

    def _longest_s(self) -> float:
        """What children of other ranks may take; their microbatches are not much longer."""
        return 2 * self._within_s()

    def _within_s(self) -> float:
        return max(WITHIN_S, LONGER * self._session.impersonator.longest_s)

    def _everybody(self, generation: int, promise: Promise) -> Promise:
        """The weakest promise of any rank holds for all."""
        least = self._session.booth.least(generation, WEAKEST_FIRST.index(promise))
        return WEAKEST_FIRST[least]

    def _conclude(self, weakest: Promise, own: Promise, reason: str) -> None:
        session = self._session
        why = reason if own == weakest else UNSAID
        if session.guarantee.promise is None or weakest != "exact-samples":
            session.guarantee.state(weakest, reason, own)
        exact_mode.insist(session, weakest, why)

    # --------------------------------------------------------------------------- the proof

    def _prove(
        self, step: int, generation: int, program: Program, crossed: int
    ) -> tuple[Promise, str]:
        """All ranks enter. What has been executed once is followed: the other rank is taken from
        where it ended the transaction before.
        """
        session = self._session
        layout, machine = session.layout, session.machine
        assert layout is not None and machine is not None, "protected"
        microbatch = session.runtime.microbatches[0]
        followed = program in self._begun
        self._begun.add(program)
        if followed:
            self._followed.add((program, crossed))
            session.impersonator.proving = False
        assert session.fabric is not None, "protected"
        tell = partial(gather, session.fabric, session.makeup.channel, generation)
        others = tell(self._words(step, microbatch))
        around = [place.top.names for place in microbatch.places]
        there = holdings(around, session.runtime.own_modules)
        if not followed:
            self._tell_constants(microbatch, there, tell)
            session.alike.begins([one["tops"] for one in others.values()])
        slots, (_, shard) = len(layout.replicas), layout.place(session.env.rank)
        partner = layout.replicas[(machine.slot + 1) % slots][shard]
        trial = Trial(session, partner, others[partner], step, microbatch, followed, there)
        tops = [one["tops"] for one in others.values()]
        found, level = self._found(trial, tops, step, generation, tell)
        if any(one["workers"] for one in others.values()):
            otherwise = session.sources.seeding.compare(
                session.runtime.sources, partner, found["traces"], tell
            )
            if otherwise and level is not None:
                return "equal-count", otherwise
        shown = (program, crossed) in self._shown
        if level is not None and trial.needs_mates and not found["mates"]:
            why = self._together(trial, found, level, step, generation)
            if why and not (shown and found["late"]):
                return "equal-count", why
        if shown and found["late"]:  # that says nothing against it; the next time tells more
            return "exact-samples", AS_BEFORE
        if level is None:
            return found["promise"], str(found["reason"])
        if followed:
            self._shown.add((program, crossed))
        outward, loop = session.runtime.outward, microbatch.places[0].top.loop.id
        if outward.get(loop, level) != level:
            self._followed.clear()  # it has to be shown anew from there
        outward[loop] = level
        session.sources.trust()
        session.impersonator.constants.settle()
        trial.learn(found["moved"])
        self._adopt(found, microbatch, level)
        return "exact-samples", trial.praise(microbatch.places[level].top.loop.id)

    def _found(
        self, trial: Trial, tops: list[list[bytes]], step: int, generation: int, tell: Tell
    ) -> tuple[Words, int | None]:
        """The report of this rank's child, and the loop that all ranks found to be right."""
        session = self._session
        found = self._tried(trial)
        level = self._agreed(found, generation)
        if found["late"]:
            found = self._tried(trial)
            level = self._agreed(found, generation)
        if level is None and session.booth.least(generation, int(self._shared(trial, found, tell))):
            found = self._tried(trial)
            level = self._agreed(found, generation)
        if level is None and found["mates"]:
            level = self._found_together(trial, found, tops, step, generation)
        return found, level

    def _tell_constants(self, microbatch: Microbatch, there: Holdings, tell: Tell) -> None:
        seen: set[tuple[int, str]] = set()
        for place in microbatch.places:
            if place.top.context is not None:
                names = {**place.top.globals, **place.top.names}
                seen |= seen_by_contexts(place.top.context.attributes, names)
        session = self._session
        session.impersonator.constants.exchange(there, session.runtime.own_modules, seen, tell)

    def _together(self, trial: Trial, found: Words, level: int, step: int, generation: int) -> str:
        """Why what lies behind the door is not the other rank's, or "". All ranks enter."""
        session = self._session
        if not session.booth.least(generation, int(trial.has_mates)):
            keys = sorted(map(key_of, found["immaterial"]), key=str)
            return parted(keys, "between steps") if keys else ""
        place = f"recoverrun/proof/{step}/{level}"
        done = self._met(trial, level, generation, place)
        if not session.booth.least(generation, int(not done["failed"])):
            done = self._met(trial, level, generation, f"{place}/again")
            found["late"] = not session.booth.least(generation, int(not done["late"]))
        found["talked"] = found["talked"] or done["talked"]
        found["moved"] = [*found["moved"], *done["moved"]]
        if not done["reason"]:
            found["immaterial"] = [*found["immaterial"], *done["immaterial"]]
        return str(done["reason"])

    def _found_together(
        self, trial: Trial, found: Words, tops: list[list[bytes]], step: int, generation: int
    ) -> int | None:
        """The same where a child that is alone does not come to the door: its code talks to the
        other shards before (an evaluation, a target network).
        """
        for level, noted in enumerate(zip(*tops, strict=False)):
            if not all(noted):
                continue
            found["reason"] = self._together(trial, found, level, step, generation)
            found["exact"] = [] if found["reason"] else [level]
            if self._agreed(found, generation) is not None:
                return level
        return None

    def _met(self, trial: Trial, level: int, generation: int, place: str) -> Words:
        """What comes of children that meet at `place`. One that is late makes the others fail."""
        within_s = self._within_s()
        work = partial(trial.work_together, level, place, within_s / 2)
        store = replica_children.relaying(self._session.store(generation).call)
        return self._done(trial, lambda: forked_child.run_asking(work, within_s, store))

    def _adopt(self, found: Words, microbatch: Microbatch, level: int) -> None:
        """What the child has learned is true here."""
        actor, loop = self._session.impersonator, microbatch.places[0].top.loop
        for one in self._session.runtime.microbatches:
            if one.places[0].top.loop is loop:
                one.chosen = level
        if microbatch.top.context is not None:
            actor.captures.include(microbatch.top.context)
        regions = self._session.runtime.regions
        regions.discard(loop.id)
        regions.add(microbatch.top.loop.id)
        actor.talked |= bool(found["talked"])
        actor.fed.update(found["fed"])
        actor.bearing.immaterial |= frozenset(key_of(key) for key in found["immaterial"])

    def _words(self, step: int, microbatch: Microbatch) -> Words:
        session = self._session
        captures = session.impersonator.captures
        after = captures.at((step, microbatch.index, AFTER, 0))
        before = [one for one in captures.points if one.kind == "after" and one.step < step]
        places = microbatch.places[:LEVELS]
        return {
            "tops": [p.top.context.pack() if p.top.context else b"" for p in places],
            "before": before[-1].pack() if before else b"",
            "shown": [[list(mark), door] for mark, door in microbatch.shown[:LEVELS]],
            "gradient": microbatch.gradient,
            "end": crc_of_streams(after.streams) if after is not None else 0,
            "bulk": bulk_of(microbatch),
            "workers": has_workers(session.runtime.sources),
        }

    def _tried(self, trial: Trial) -> Words:
        return self._done(trial, lambda: forked_child.run(trial.work, self._within_s()))

    def _done(self, trial: Trial, work: Callable[[], Words]) -> Words:
        """What the child says; where nothing comes of it, that is the reason."""
        try:
            found, late = work(), False
        except forked_child.Failed as problem:
            found, late = {"failed": str(problem)}, isinstance(problem, forked_child.Late)
        why = found.get("failed")
        if why:
            loop = trial.microbatch.places[0].top.loop.id
            reason = f"{loop}: rank {trial.partner}'s microbatch cannot be executed: {why}"
            return {**EMPTY, "reason": reason, "failed": why, "late": late}
        return found

    def _agreed(self, found: Words, generation: int) -> int | None:
        """The loop from which all ranks have executed the right microbatch, if there is one."""
        fabric, channel = self._session.fabric, self._session.booth.channel
        assert fabric is not None, "protected"
        told_of = ("exact", "immaterial", "rewrites", "late", "mates")
        mine = {name: found[name] for name in told_of}
        said = gather(fabric, channel, generation, mine)
        self._session.impersonator.rewrites |= any(one["rewrites"] for one in said.values())
        for name in ("late", "mates"):
            found[name] = any(one[name] for one in said.values())
        common = set.intersection(*(set(one["exact"]) for one in said.values()))
        immaterial = {key_of(key) for one in said.values() for key in one["immaterial"]}
        found["immaterial"] = [told(key) for key in sorted(immaterial, key=str)]
        return min(common, default=None)

    def _shared(self, trial: Trial, found: Words, tell: Any) -> bool:
        """True if all ranks now know what others hold otherwise: one more try is worth it."""
        different = {key_of(key) for key in found["different"]}
        heard = tell({"different": [told(key) for key in sorted(different, key=str)]})
        keys = {key_of(key) for one in heard.values() for key in one["different"]}
        if not keys:
            return False
        top, shares = trial.microbatch.places[0].top, self._session.impersonator.shares
        mine = shares.own(keys, {**top.globals, **top.names})
        given = tell({"shares": mine})
        theirs = {rank: one["shares"] for rank, one in given.items()}
        known = shares.hear(theirs, self._session.env.rank)
        return all(one["known"] for one in tell({"known": known}).values())


def _program(microbatch: Microbatch) -> Program:
    return microbatch.places[0].top.loop.id, microbatch.places[0].skip
