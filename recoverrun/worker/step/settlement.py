"""Carries out what the machine wants at the end of a synchronising backward, until it is applied.

It runs in the script's thread. A view that comes meanwhile ends whatever waits (`Superseded`); the
machine knows it, and wants something else.
"""

from typing import assert_never

from ft_collectives.communicators.errors import InvariantBroken, RanksDiffer, Superseded
from ft_collectives.step.step_events import (
    Accumulated,
    Apply,
    Break,
    Compare,
    Compared,
    Compute,
    Conceded,
    Differ,
    Effect,
    Reduce,
    Reduced,
    Send,
    Uneven,
    Vote,
    Voted,
    Withdraw,
)
from recoverrun.worker.step.control_thread import Control
from recoverrun.worker.step.interfaces import MakesUp, Verifier
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.progress_page import Phase


class Settlement:
    """The settlement of the transactions of one worker."""

    def __init__(
        self, worker: WorkerState, control: Control, make_up: MakesUp, verifier: Verifier
    ) -> None:
        self._worker = worker
        self._control = control
        self._make_up = make_up
        self._verifier = verifier

    def run(self) -> None:
        """Run until the transaction is applied. Raises what a rank cannot go on with."""
        while not self._carry_out(self._control.next_effect()):
            pass

    def _carry_out(self, effect: Effect) -> bool:
        """Carry out the machine's effect; True once the step is applied."""
        worker = self._worker
        try:
            match effect:
                case Compute(identities=identities):
                    worker.progress.at(Phase.REDO)
                    for identity in identities:
                        with worker.timing.measure("redo"):
                            self._make_up.compute(identity)
                        self._control.feed(Accumulated(identity=identity))
                    worker.progress.at(Phase.SETTLE)
                case Reduce(generation=generation):
                    self._reduce(generation)
                case Vote():
                    self._vote(effect)
                case Compare(generation=generation):
                    self._compare(generation)
                case Uneven(reason=reason, total=total):
                    self._concede(reason, total)
                case Withdraw(reason=reason):
                    self._withdraw(reason)
                case Apply(step=step):
                    self._make_up.applies(step)
                    return True
                case Break(invariant=invariant, reason=reason):
                    worker.reporter.broken(invariant, reason)
                    raise InvariantBroken(invariant, reason)
                case Differ(reason=reason):
                    worker.reporter.discord(reason)
                    raise RanksDiffer(reason)
                case Send():
                    raise AssertionError("messages leave when they are made")
                case _:
                    assert_never(effect)
        except Superseded:
            pass  # the machine knows the newer view, or will in a moment
        return False

    def _reduce(self, generation: int) -> None:
        worker, protection = self._worker, self._worker.protection
        self._make_up.tell(generation)
        with worker.timing.measure("reduce"):
            for reducer in protection.strategy.reducers():
                reducer.finish(generation)
        if generation > 1:
            worker.timing.note("rebuild", protection.fabric.rebuild_ms)
        self._control.feed(Reduced(generation=generation))

    def _vote(self, vote: Vote) -> None:
        generation, ballot = vote.generation, vote.ballot
        worker, protection = self._worker, self._worker.protection
        protection.vote_group.channel.what = f"the vote on step {worker.step}"
        with worker.timing.measure("vote"):
            tally = protection.vote_group.tally(
                generation,
                ballot,
                lambda: worker.failpoints.strike(worker.step, "vote"),
                microbatches=len(ballot) // len(protection.layout.slots),
                word=self._verifier.word,
                digest=self._verifier.digest,
                inputs=self._make_up.inputs,
                invited=vote.invited,
            )
        self._verifier.hear(tally)
        self._make_up.hear(tally)
        counts, unequal, invited = tally.counts, tally.unequal, tally.invited
        self._control.feed(
            Voted(generation=generation, counts=counts, unequal=unequal, invited=invited)
        )

    def _compare(self, generation: int) -> None:
        """Find the members that have taken unequally many microbatches."""
        protection = self._worker.protection
        many = protection.machine.microbatches
        taken, since = protection.vote_group.taken(generation, many)
        self._control.feed(Compared(generation=generation, taken=taken, since=since))

    def _concede(self, reason: str, total: int) -> None:
        """First the promise, so that whoever reads of the step knows of it."""
        generation = self._worker.protection.machine.view.generation
        self._worker.refuse(reason)
        self._control.feed(Conceded(generation=generation, total=total))

    def _withdraw(self, reason: str) -> None:
        withdraw = self._worker.protection.fabric.withdraw
        assert withdraw is not None, f"came back: {reason}"
        withdraw(reason)
