"""The driver: it carries out the decisions of the in-step machine in a worker.

A transaction is one synchronising backward: the one in which torch would have reduced gradients
across replicas, with the backwards since the last such one. It is settled before that backward
returns, and then gradients are what torch would have left there (docs/recovery.md).

The script's thread feeds the machine what the script does, and at the end of a synchronising
backward carries out what the machine wants until the transaction is applied (`settle`). Without
losses nothing here waits for the launcher: a transaction costs one vote on the data plane and one
message that nobody answers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ft_collectives.communicators.channel import Accelerator
from ft_collectives.communicators.errors import RanksDiffer, Superseded
from ft_collectives.communicators.limits import TimedOut
from ft_collectives.communicators.script_modes import aside
from ft_collectives.process_group.substitution_policy import SubstitutionPolicy
from ft_collectives.step.reducer import Reducer
from ft_collectives.step.step_events import Accumulated, Discarded, Ended, Settled
from ft_collectives.step.vote import VoteGroup
from recoverrun.worker.context.evidence import IterationEvidence
from recoverrun.worker.groups import process_groups
from recoverrun.worker.step import exact_mode, switches, take_over
from recoverrun.worker.step.control_thread import Control
from recoverrun.worker.step.held_exceptions import HELD
from recoverrun.worker.step.hooked_gradients import HookedGradients
from recoverrun.worker.step.interfaces import (
    Follows,
    MakesUp,
    NoReturn,
    Replayer,
    Returns,
    Verifier,
)
from recoverrun.worker.step.reducers import Reducers
from recoverrun.worker.step.settlement import Settlement
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.unreduced_updates import UnreducedUpdates
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Top
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.progress_page import Phase

VICTIM_WAITS_S = 1.0
"""How long a rank whose replica broke waits for the launcher to end it, before it complains."""

CHANGED = (
    "the script changes gradients between the backward passes of one reduction: a lost rank's "
    "microbatches cannot be made up among such gradients"
)

BEGUN_ANEW = (
    "the script dropped gradients before they were reduced: where a lost rank stands after those "
    "microbatches is unknown"
)


class Driver:
    """Recovery in this worker. It begins with the end of the first synchronising backward."""

    def __init__(
        self,
        worker: WorkerState,
        replayer: Replayer,
        *,
        left: Follows,
        make_up: MakesUp,
        verifier: Verifier,
        policy: SubstitutionPolicy,
    ) -> None:
        """`policy` says what groups with lost members do in collectives."""
        self._returns: Returns = NoReturn()
        self.unannounced: Strategy | None = None  # see `watched_by`
        self.worker = worker
        self.replayer = replayer
        self._left = left
        self._make_up = make_up
        self._verifier = verifier
        self.policy = policy
        self.control = Control(worker, left.inherit, replayer.look_at_the_clock)
        self._settlement = Settlement(worker, self.control, make_up, verifier)
        self._between = UnreducedUpdates()
        self._hooked = HookedGradients(worker)
        self._schedules = 0  # nesting depth of pipeline schedules that run
        self._reducers = Reducers(worker)
        self._failure: RuntimeError | None = None  # set if a transaction failed: none follows it
        self._usual = 1  # microbatches of the last transaction; faults strike at a share of them

    # --------------------------------------------------------------------------- switching on

    def serve(self, strategy: Strategy, layout: Layout, over: Accelerator | None) -> bool:
        """Have `strategy` serve a model that is replicated as `layout` says; gradients go `over` an
        accelerator, if one is given. False if the script is not protected.
        """
        worker = self.worker
        if refusal := self._hooked.refusal(strategy):
            worker.refuse(refusal)
        if worker.refusal:
            return False
        if worker.strategy is not None:
            if worker.strategy is not strategy or layout != worker.layout:
                worker.refuse("the script trains models that are replicated in different ways")
            return not worker.refusal
        self.control.await_first_view()
        worker.reporter.topology(strategy.name, layout)
        if len(layout.replicas) == 1:
            worker.roll_back("the script has one replica: there is nothing to survive on")
            return False
        worker.serve(strategy, layout)
        self._reducers.over = over
        if strategy.early:
            worker.runtime.microbatches = []  # what was trained so far was not this
        return True

    def begin(self) -> None:
        """The first synchronising backward is over, and torch has reduced it: all ranks are here.

        What all of them can serve is protected from the next transaction on.
        """
        worker = self.worker
        counts = len(worker.runtime.microbatches)
        fabric = take_over.connect(worker)
        assert worker.layout is not None and worker.strategy is not None, "served"
        vote_group = VoteGroup(fabric, range(worker.layout.world_size))
        try:
            refusal = self._verifier.fitness(fabric, vote_group)
            if refusal:
                worker.refuse(refusal, snapshots=bool(worker.runtime.microbatches))
                return
            exact_mode.require(worker.env, worker.strategy)
            self.replayer.transaction_ends()
            take_over.take_over(worker, vote_group, counts, self.replayer, self.policy)
            worker.progress.at(Phase.PROOF, worker.step)
            self._verifier.first()
        except Superseded:
            take_over.await_restart(worker)
        self.begin_transaction()

    def watched_by(self, strategy: Strategy) -> None:
        """`strategy` serves a script that wraps no model, once it has seen a step of it."""
        self.unannounced = strategy

    def new_reducer(self) -> Reducer:
        """Make the reducer of a model's gradients; all ranks make theirs in the same order."""
        return self._reducers.new()

    # --------------------------------------------------------------------------- the step goes on

    @aside
    def iteration_begins(self, top: Top) -> None:
        """A loop's body begins, perhaps a microbatch's: leave our context in shared memory."""
        worker = self.worker
        region = worker.runtime.is_region(top)
        worker.progress.at(Phase.MICROBATCH if region else Phase.BETWEEN)
        if not self._watches:
            return
        top.evidence, top.switches = IterationEvidence(), switches.now(worker.strategy)
        top.synced = () if worker.strategy is None else worker.strategy.forward_sync.counts()
        index = len(worker.runtime.microbatches)
        if worker.protected and not index and region:
            worker.failpoints.strike(worker.step - 1, "between")
            if worker.failpoints.pace_s:
                worker.failpoints.keep_pace(away=worker.lost)
        wanted = self._verifier.wants(top) or self._returns.wants(top)
        at = worker.transaction, index, worker.runtime.loop_stack.attempt()
        context = self.replayer.capture_top(*at, top, wanted=wanted)
        if worker.protected and context is not None:
            if not index:
                tops = [one.top for one in worker.runtime.under_way() if one.top is not None]
                around = [outer.context for outer in tops if outer.context is not None]
                worker.context_buffer.top(context, around)
                self._verifier.begins(top, context)
            self._left.follow(context)
            if not index and region:
                self._returns.begins(top, context)

    @property
    def _watches(self) -> bool:
        """True if the script is served, or may be once its first gradients are reduced by hand."""
        worker = self.worker
        return not worker.refusal and (worker.strategy is not None or process_groups.several())

    @aside
    def forward_begins(self, values: Any) -> None:
        """The root module's forward begins, in training, on these inputs."""
        worker = self.worker
        self.replayer.forward_begins(values)
        if worker.acting:
            worker.failpoints.strike(worker.step, "redo")
            return
        if worker.strategy is None or (worker.refusal and not worker.protected):
            return
        take_over.training_begins(worker.runtime)
        self._hooked.forward_begins()
        if not worker.protected:
            self._returns.first_forward()
        index = len(worker.runtime.microbatches)
        worker.progress.at(Phase.MICROBATCH, worker.step, index)
        self._note(index)
        if index == self._usual // 2:
            worker.failpoints.strike(worker.step, "forward")

    def _note(self, index: int) -> None:
        """Leave a mark of the microbatch that is under way."""
        worker = self.worker
        top = worker.runtime.top_around()
        if top is not None and top.evidence is not None:
            worker.context_buffer.mark(worker.step, index, top.evidence.mark)

    def bucket_reached(self) -> None:
        """A backward brings the gradients of a bucket."""
        worker = self.worker
        if not worker.acting and len(worker.runtime.microbatches) >= self._usual // 2:
            worker.failpoints.strike(worker.step, "backward")

    def final_in(self) -> int:
        """The generation in which the synchronising backward that runs may start its reductions.

        0 if it may not: replicas are lost, for which this rank may have to add more.
        """
        worker, machine = self.worker, self.worker.machine
        if machine is None or worker.acting:
            return 0
        with worker.changed:  # a view in between would make final what a loss has yet to fill
            return 0 if machine.plan_is_stale or worker.lost else machine.view.generation

    @contextmanager
    def schedule(self) -> Iterator[None]:
        """Run a step of a pipeline's schedule in this scope."""
        self._schedules += 1
        try:
            yield
        finally:
            self._schedules -= 1

    @property
    def in_schedule(self) -> bool:
        """True in a step of a pipeline's schedule: its parts are no microbatches."""
        return self._schedules > 0

    def hooks_gradients(self) -> None:
        """The script uses gradients while backward runs."""
        self._hooked.found()

    def backward_begins(self, losses: Any) -> None:
        """A backward begins, from these losses."""
        worker, strategy = self.worker, self.worker.strategy
        self.replayer.ends(losses)
        if worker.acting:
            self.replayer.backward_begins()
            return
        if self._failure is not None:
            raise self._failure
        if strategy is None and self._watches and worker.runtime.active:
            self._returns.first_forward()  # of a script whose model nobody has wrapped
        if strategy is None or not worker.runtime.active:
            worker.progress.at(Phase.FIRST)  # it trains: no more is known of who is not served
            return
        microbatches = worker.runtime.microbatches
        worker.progress.at(Phase.MICROBATCH, worker.step, len(microbatches))
        self._note(len(microbatches))
        if microbatches:
            self._between.heed(worker, strategy)
        if microbatches and self._between.gradients_changed(strategy):
            self._refuse_or_begin_anew(strategy)
        if not worker.runtime.microbatches:
            strategy.begin()
        strategy.backward_begins()

    def _refuse_or_begin_anew(self, strategy: Strategy) -> None:
        """The script has written to gradients that are not reduced yet, or has dropped them all."""
        if not strategy.empty():
            self.worker.refuse(CHANGED)
            return
        self.control.feed(Discarded())  # the loss was not finite, say
        if self.worker.lost:
            self.worker.guarantee.weaken(BEGUN_ANEW)
        self.control.forget()
        self.begin_transaction()

    def backward_done(self) -> None:
        """A backward of the script has returned."""
        worker, strategy = self.worker, self.worker.strategy
        if worker.acting:
            self.replayer.backward_done()
            return
        if not worker.runtime.active:
            return
        if not self._watches and not worker.protected:
            if worker.unvoted is not None:
                worker.unvoted.backward_done()
            return
        if strategy is not None:
            strategy.backward_done()
        microbatch = worker.runtime.note_backward()
        worker.runtime.loop_stack.begin_counts()
        if microbatch is not None:
            self.replayer.ran(worker.transaction, microbatch, strategy)
        if strategy is None:
            return
        if not worker.protected:
            if strategy.synced:
                self.begin()
        else:
            if microbatch is None:
                worker.refuse(worker.runtime.why_no_loop(), snapshots=False)
            self._accumulated()
            if strategy.synced:
                self.settle()
        self._hooked.backward_done()
        if not strategy.synced:
            self._between.left(strategy)

    def _accumulated(self) -> None:
        """One more microbatch of the script's own is in the transaction."""
        worker, slot = self.worker, self.worker.protection.machine.slot
        index = self.control.accumulated()
        self.control.note(Accumulated(identity=(slot, index)))
        worker.context_buffer.enters((slot, worker.step, index + 1))

    # --------------------------------------------------------------------------- settling

    def settle(self) -> None:
        """Make the gradients of this transaction whole, agreed and final."""
        worker, step = self.worker, self.worker.step
        if not worker.protected or worker.acting:
            return
        if (context := self.replayer.last_after()) is not None:
            worker.context_buffer.after(context)
        worker.context_buffer.rests()
        worker.progress.at(Phase.SETTLE)
        self._verifier.reduces()
        self.control.feed(Settled(microbatches=self.control.accumulated()))
        with HELD:
            try:
                self._settlement.run()
            except (TimedOut, RanksDiffer) as failure:
                self._failure = failure
                raise
            for reducer in worker.protection.strategy.reducers():
                reducer.deliver()
            self.replayer.transaction_ends()
            self._make_up.end_step(step)
            self._returns.committed()
            worker.progress.at(Phase.PROOF)
            self._verifier.committed()
            self.begin_transaction()

    def begin_transaction(self) -> None:
        """Begin a transaction: no microbatch of it is done."""
        worker = self.worker
        worker.progress.at(Phase.BETWEEN, worker.step, 0)
        self._usual = max(1, len(worker.runtime.microbatches))
        if worker.protected:
            for reducer in worker.protection.strategy.reducers():
                reducer.begin()
            worker.context_buffer.enters((worker.protection.machine.slot, worker.step, 0))
        worker.runtime.begin_step()
        self._between.forget()

    # --------------------------------------------------------------------------- lost ranks return

    def return_by(self, returns: Returns) -> None:
        """Lost ranks take part again by way of `returns` from now on."""
        self._returns = returns

    def learned(self) -> list[int]:
        """The numbers that a process in a lost rank's place needs at the top of a step."""
        return [self._usual, self.worker.runtime.loop_stack.number()]

    def learn(self, learned: list[int]) -> None:
        """Take over what another rank has `learned`."""
        self._usual, attempt = learned
        self.worker.runtime.loop_stack.tell(attempt)

    # --------------------------------------------------------------------------- the end

    def farewell(self) -> None:
        """The script ended normally; nobody has to wait for this rank."""
        worker = self.worker
        worker.progress.at(Phase.END)
        self.control.feed(Ended())
        generation = worker.protection.fabric.leave() if worker.protected else worker.generation
        gate = worker.runtime.gate
        worker.reporter.farewell(
            worker.step, generation, passed_by=gate.passed_by, failed=gate.failed
        )

    def await_end(self, error: BaseException) -> None:
        """A collective of our own replica broke. If a rank of it died, we are about to be ended."""
        changed = self.worker.changed
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            with changed:
                changed.wait_for(lambda: False, timeout=VICTIM_WAITS_S)
