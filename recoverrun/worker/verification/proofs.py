"""Proof that another rank's microbatches can be executed here, before anybody is lost.

At the end of the first transaction every rank executes the first microbatch of the next slot, from
the context that this slot's rank captured (`mutual_proof`); and so it does once more at the end of
the second, from where it would take that rank to stand by what that had at the end of the first
(`lost_rank`). It compares what enters the model, the random streams there, the loss and the
gradient with what that rank noted of its own. A loop, or a backward in it, that comes later is
proved as the first one was. Where CUDA is in use nothing is executed: no child can use it, and the
promise is `equal-count`.

What cannot be re-executed is protected in `equal-count` mode or not at all, never run wrongly.
"""

import weakref
from collections.abc import Callable
from typing import Any, Literal

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.vote import Tally, VoteGroup
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.step import exact_mode
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import LEVELS, Microbatch, MicrobatchPlace, Top
from recoverrun.worker.verification.mutual_proof import MutualProof, Proved
from rendezvous.coordinator.guarantees import WEAKEST_FIRST
from rendezvous.protocol.messages import UNSAID, Promise

UNEQUAL = "ranks take unequally many microbatches to one reduction: {}"


ALONE = (
    "{}: ranks took different ways through the script to step {}, and the microbatches of "
    "this one cannot be compared with any of theirs"
)

AGAIN, EVERY = 4, 512
"""Transactions until what has been proved is proved again, and from then to the next time at most:
code may come to what it has not executed so far.
"""

WAITS = 8
"""Transactions in a row of which none could be compared, as a rank did something alone before."""

NOTHING, PROVED, FIRST, SECOND = range(4)  # words of a vote: what is to be proved after it


def agreed(said: tuple[int, ...]) -> Literal["prove", "part", "go on"]:
    """The common decision of ranks with so many of each word; nobody enters a proof that others do
    not.
    """
    if said[NOTHING] or not said[FIRST] + said[SECOND]:
        return "go on"
    return "part" if said[PROVED] else "prove"


Program = tuple[str, int]
"""The loop around a backward, and which one of its backwards it is."""

Around = tuple[str, weakref.ref[Top]]
"""A loop around a microbatch, and its iteration: one that is over, and all that the script had in
it, may go.
"""


class Proofs:
    """Asks all ranks to prove, and concludes what the run promises."""

    def __init__(
        self,
        worker: WorkerState,
        executor: Executor,
        mutual: MutualProof,
        tell_each_other: Callable[[int], None],
    ) -> None:
        """`tell_each_other` is done in that generation once all ranks can be protected."""
        self._worker = worker
        self._executor = executor
        self._mutual = mutual
        self._tell_each_other = tell_each_other
        self._begun: set[Program] = set()  # executed as they first ran
        self._followed: set[tuple[Program, int]] = set()  # across so many loops
        self._shown: set[tuple[Program, int]] = set()  # some time
        self._anew: dict[Program, int] = {}  # so many loops each transaction crosses at least
        self._again = AGAIN  # the transaction that is proved although its like has been shown
        self._waited = 0  # transactions in a row that could not be compared
        self._incomplete = False  # a rank was lost in the transaction before
        self._before: list[Around] = []  # the last microbatch of the transaction before
        self._tally: Tally | None = None  # of the vote on the transaction that commits

    # --------------------------------------------------------------------------- before anything

    def fitness(self, fabric: Fabric, vote_group: VoteGroup) -> str:
        """The reason why this script cannot be served, as all ranks find it, or ""."""
        worker, runtime = self._worker, self._worker.runtime
        why = worker.refusal
        if not runtime.microbatches:
            why = why or runtime.why_no_loop()
        elif all(place.refusal for place in runtime.microbatches[0].places):
            why = why or runtime.microbatches[0].place.refusal
        strategy = worker.strategy
        assert strategy is not None, "served"
        mine = {"refusal": why, "count": len(runtime.microbatches), "terms": strategy.terms}
        said = gather(fabric, vote_group.channel, fabric.view.generation, mine)
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
        """The first transaction is over: prove it, and make the promise of this run."""
        worker = self._worker
        fabric = worker.protection.fabric
        generation = fabric.view.generation
        last = worker.runtime.microbatches[-1]
        with fabric.limits.lengthened(self._mutual.longest_s):
            proved = self._prove(0, generation, _program(last), 0)
        self._before = _around(last)
        if proved.promise == "exact-samples":  # before any rank can know that all have promised
            self._leave()
        weakest = self._everybody(generation, proved.promise)
        if weakest != "unprotected":
            self._tell_each_other(generation)
        self._conclude(weakest, proved)

    def _leave(self) -> None:
        """Leave where this rank stands after this transaction, for successors, and where it began
        from the loop that has been chosen.
        """
        worker, microbatches = self._worker, self._worker.runtime.microbatches
        top = microbatches[0].top.context
        assert top is not None, "executed from there"
        worker.context_buffer.top(top)
        captures, step = self._executor.captures, top.step
        worker.context_buffer.after(captures.after(step, microbatches[-1]))

    def committed(self) -> None:
        """A transaction is committed; those of a new kind are proved, if all ranks do so."""
        worker, (tally, self._tally) = self._worker, (self._tally, None)
        microbatches = worker.runtime.microbatches
        incomplete, self._incomplete = self._incomplete, bool(worker.lost)
        if tally is None or worker.lost or not microbatches:
            return
        if incomplete:  # who has come back has not shown yet that it can stand in for others
            self._again = worker.step
        will, wanted = agreed(tally.said), self._wanted()
        if will == "part":
            self._part()
        self._before = _around(microbatches[-1])
        if will == "go on":
            self._executor.proving = worker.step >= self._again
        if worker.step >= self._again:
            self._again = worker.step + min(worker.step, EVERY)
            self.renew()
        if will != "prove" or wanted is None:
            return
        level = microbatches[0].chosen
        fabric = worker.protection.fabric
        generation = fabric.view.generation
        begun, followed = set(self._begun), set(self._followed)
        try:
            with fabric.limits.lengthened(self._mutual.longest_s):
                proved = self._prove(worker.step - 1, generation, *wanted)
            weakest = self._everybody(generation, proved.promise)
            waits = weakest == "equal-count" and self._waits(generation, proved)
        except Superseded:
            self._begun, self._followed = begun, followed  # it shows when it matters, or later
            return
        if waits:
            self._begun, self._followed = begun, followed
            self._executor.proving = True
            return
        self._conclude(weakest, proved)
        if microbatches[0].chosen != level:
            self._leave()

    def _wanted(self) -> tuple[Program, int] | None:
        """The proof that the present transaction needs: a program that none has shown yet."""
        microbatches = self._worker.runtime.microbatches
        program, crossed = _program(microbatches[-1]), self._crossed(microbatches[0].places)
        known = program in self._begun and (program, crossed) in self._followed
        return None if known else (program, crossed)

    def _crossed(self, places: tuple[MicrobatchPlace, ...]) -> int:
        """The number of loops around a microbatch that began another iteration since the
        transaction before: the inner ones.
        """
        before = [top() for _, top in self._before]
        same = {id(top) for top in before}
        return next((n for n, place in enumerate(places) if id(place.top) in same), len(places))

    def wants(self, top: Top) -> bool:
        """True if an iteration of a loop around those that are executed again may have to be tried
        instead: nobody has been followed into another one of it yet.
        """
        around = [loop for loop, _ in self._before[:LEVELS]]
        if top.loop.id not in around:
            return not self._before
        outward = around.index(top.loop.id)
        return not any(crossed > outward for _, crossed in self._followed)

    def learned(self) -> list[object]:
        """The proved programs, for a process that takes a lost rank's place (`learn`)."""
        followed, shown = sorted(self._followed), sorted(self._shown)
        anew = sorted(self._anew.items())
        counts = [self._again, self._waited, self._incomplete]
        return [sorted(self._begun), followed, shown, anew, *counts]

    def learn(self, learned: list[Any]) -> None:
        """All ranks have proved this before this process began."""
        begun, followed, shown, anew, self._again, self._waited, self._incomplete = learned
        self._anew = {(loop, skip): crossed for (loop, skip), crossed in anew}
        self._begun = {(loop, skip) for loop, skip in begun}
        self._followed = {((loop, skip), crossed) for (loop, skip), crossed in followed}
        self._shown = {((loop, skip), crossed) for (loop, skip), crossed in shown}
        self._executor.proving = False

    def renew(self) -> None:
        """More is known not to be common to all ranks: prove again that nothing depends on it."""
        self._followed.clear()

    @property
    def word(self) -> int:
        """The proof that this rank would enter once the transaction is committed."""
        worker = self._worker
        if not worker.guarantee.exact or worker.lost or not worker.runtime.microbatches:
            return NOTHING
        wanted = self._wanted()
        if wanted is None:
            return PROVED
        return SECOND if wanted[0] in self._begun else FIRST

    def hear(self, tally: Tally) -> None:
        """Note the words of all of them."""
        self._tally = tally

    def _part(self) -> None:
        """Some ranks have trained in a loop that others did not: nobody can compare."""
        worker = self._worker
        loop, _ = _program(worker.runtime.microbatches[-1])
        own = self.word in (FIRST, SECOND)
        reason = ALONE.format(loop, worker.step - 1)
        worker.guarantee.weaken(reason if own else UNSAID)
        exact_mode.end_if_unserved(worker, "equal-count", reason if own else UNSAID)

    def _everybody(self, generation: int, promise: Promise) -> Promise:
        """The weakest promise of any rank holds for all."""
        least = self._worker.protection.vote_group.least(generation, WEAKEST_FIRST.index(promise))
        return WEAKEST_FIRST[least]

    def _waits(self, generation: int, proved: Proved) -> bool:
        """True if the next transaction is proved instead: of this one, all that stands against it
        is that a rank did something alone before it, and drew random numbers for that. Where that
        rank is lost, another one does so in its place.
        """
        open_yet = proved.promise == "exact-samples" or proved.undecided
        least = self._worker.protection.vote_group.least(generation, int(open_yet))
        self._waited = self._waited + 1 if least else 0
        return 0 < self._waited <= WAITS

    def _conclude(self, weakest: Promise, proved: Proved) -> None:
        worker, own = self._worker, proved.promise
        self._waited = 0
        why = proved.reason if own == weakest else UNSAID
        if weakest == "unprotected":
            weakest = worker.without_survivors
            own = weakest if own == "unprotected" else own
        if weakest == "equal-count" and exact_mode.gives_way(worker):
            worker.guarantee.weaken(why)
        elif worker.guarantee.promise is None or weakest != "exact-samples":
            worker.guarantee.state(weakest, proved.reason, own)
        exact_mode.end_if_unserved(worker, weakest, why)

    # --------------------------------------------------------------------------- the proof

    def _prove(self, step: int, generation: int, program: Program, crossed: int) -> Proved:
        """All ranks enter. What has been executed once is followed: the other rank is taken from
        where it ended the transaction before.
        """
        followed = program in self._begun
        self._begun.add(program)
        if followed:
            self._followed.add((program, crossed))
            self._anew[program] = min(crossed, self._anew.get(program, crossed))
            self._executor.proving = False
        shown = (program, crossed) in self._shown
        anew = self._anew.get(program, 0)
        proved = self._mutual.run(step, generation, followed=followed, shown=shown, anew=anew)
        if proved.anew:
            if followed:
                self._shown.add((program, crossed))
            if proved.elsewhere:
                self._followed.clear()  # it has to be shown anew from there
        return proved


def _around(microbatch: Microbatch) -> list[Around]:
    return [(place.top.loop.id, weakref.ref(place.top)) for place in microbatch.places]


def _program(microbatch: Microbatch) -> Program:
    return microbatch.places[0].top.loop.id, microbatch.places[0].skip
