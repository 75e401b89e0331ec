"""A worker's side of recovery: what carries out the decisions of the in-step machine.

A transaction is one synchronising backward: the one in which torch would have reduced gradients
across replicas, with the backwards since the last such one. It is settled before that backward
returns, and then gradients are what torch would have left there (docs/recovery.md).

One thread listens to the launcher (`_listen`) and feeds views and decisions to the machine the
moment they arrive; the script's thread feeds what the script does, and at the end of a
synchronising backward carries out what the machine wants until the transaction is applied
(`settle`). Both meet at one condition variable, which communicators share (`fabric`), so that any
wait ends when the members change. Without losses nothing here waits for the launcher: a transaction
costs one vote on the data plane and one message that nobody answers.
"""

import threading
import time
from collections import deque
from datetime import timedelta
from functools import partial
from typing import Any

from ft_collectives.communicators.errors import RanksDiffer, Superseded
from ft_collectives.communicators.fabric import Accelerator, Fabric
from ft_collectives.communicators.launcher_store import LauncherStore
from ft_collectives.communicators.limits import TimedOut
from ft_collectives.step.machine import (
    Accumulated,
    Decided,
    Discarded,
    Effect,
    Ended,
    Event,
    InStep,
    Send,
    Settled,
    Tick,
    Viewed,
)
from ft_collectives.step.reducer import Reducer
from ft_collectives.step.vote import Booth
from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.context_buffer import Remnants
from recoverrun.worker.context.observer import TorchSenses
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.gradients.unreduced_updates import Between
from recoverrun.worker.groups import process_groups
from recoverrun.worker.replay.data_sources import Sources
from recoverrun.worker.replay.executor import Impersonator
from recoverrun.worker.replay.make_up import MakeUp
from recoverrun.worker.step import protection
from recoverrun.worker.step.failpoints import FaultPoints
from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.step.hung_thread import leave_hung
from recoverrun.worker.step.reporter import Voice
from recoverrun.worker.step.settlement import Settling
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.timing import Phases
from recoverrun.worker.tracking.loop_tracker import ScriptRuntime, Top
from recoverrun.worker.verification import exact_mode, parameter_checksum
from recoverrun.worker.verification.drift_check import Alike
from recoverrun.worker.verification.evidence import Evidence
from recoverrun.worker.verification.nonfinite import Guard
from recoverrun.worker.verification.proofs import Verification
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Committed, Decision, LostContexts, Message, View
from rendezvous.protocol.worker_env import WorkerEnv
from rendezvous.transport.worker_link import WorkerLink

VIEW_WITHIN_S = 60.0
"""How long a worker waits for the coordinator's first word before it calls that an error."""

VICTIM_WAITS_S = 1.0
"""How long a rank whose replica broke waits for the launcher to end it, before it complains."""

LISTEN_S, IDLE_S = 0.25, 1.0  # between looks at the machine's deadlines: if it has one, if not

TOO_LATE = "a replica is lost, and what it had to do cannot be made up any more: {}"

CHANGED = (
    "the script changes gradients between the backward passes of one reduction: a lost rank's "
    "microbatches cannot be made up among such gradients"
)

BEGUN_ANEW = (
    "the script dropped gradients before they were reduced: where a lost rank stands after those "
    "microbatches cannot be told"
)


class Session:
    """Recovery in this worker. It begins with the end of the first synchronising backward."""

    def __init__(self, env: WorkerEnv, link: WorkerLink, runtime: ScriptRuntime) -> None:
        self.env = env
        self.link = link
        self.runtime = runtime
        self.faults = FaultPoints(env.inject, env.rank)
        self.voice = Voice(link, env.rank, lambda: self.generation, exact=env.exact)
        self.guarantee = Guarantee(self.voice, lambda: max(1, len(runtime.microbatches)))
        self.impersonator = Impersonator(runtime)
        self.alike = Alike(self.impersonator.bearing.matters)
        self.makeup = MakeUp(self)
        self.sources = Sources(runtime, self.impersonator)
        self.changed = threading.Condition()
        self.view: View | None = None
        self.layout: Layout | None = None
        self.fabric: Fabric | None = None
        self.machine: InStep | None = None
        self.strategy: Strategy | None = None
        self.phases = Phases()
        self.hooked = False  # the script uses gradients while backward runs
        self.in_schedule = False  # of a pipeline: its parts are no microbatches
        self.guard = Guard(self)
        self._settling = Settling(self)
        self.verification = Verification(self)
        self._over: Accelerator | None = None
        self._channels = 0  # of reducers so far
        self._attempt = 0  # iterations since the last backward
        self._failure: RuntimeError | None = None  # of a transaction: none can follow it
        self._usual = 1  # microbatches of the transaction before
        self._between = Between()
        self._booth: Booth | None = None
        self.agenda: deque[Effect] = deque()
        self._untold: deque[Accumulated] = deque()
        self.remnants = Remnants(env.context)
        self.faults.before = self.remnants.rests  # it stands for a machine that fails
        self.impersonator.custody.patience.let_go = partial(leave_hung, self)
        runtime.on_top = self._iteration_begins
        runtime.senses = TorchSenses()
        threading.Thread(target=self._listen, name="recoverrun-control", daemon=True).start()

    # --------------------------------------------------------------------------- control thread

    def _listen(self) -> None:
        while True:
            waits = self.machine is not None and self.machine.deadline() is not None
            message = self.link.receive(LISTEN_S if waits else IDLE_S)
            if message is not None:
                self._hear(message)
            if waits:
                self.feed(Tick())
            self.impersonator.custody.patience.look()

    def _hear(self, message: Message) -> None:
        match message:
            case View():
                with self.changed:
                    if self.view is None or message.generation > self.view.generation:
                        self.view = message
                    self.changed.notify_all()
                self.feed(Viewed(view=message))
                if self.fabric is not None:
                    self.fabric.change(message)
            case Decision():
                self.feed(Decided(decision=message))
            case LostContexts():
                self.makeup.inherit(message)
            case _:
                ...  # nothing else is meant for a worker

    def feed(self, event: Event) -> None:
        """Give the machine an event; messages leave at once, work waits for the script's thread.

        The script's own microbatches of the present transaction want nothing of anybody by
        themselves: the machine hears of them before it hears of anything else.
        """
        with self.changed:
            if self.machine is None:
                return
            now = time.monotonic()
            while self._untold:
                wanted = self.machine.step(self._untold.popleft(), now)
                assert not wanted, f"a microbatch of the script's own asks for {wanted}"
            for effect in self.machine.step(event, now):
                if isinstance(effect, Send):
                    told = effect.message
                    if isinstance(told, Committed):
                        told = self.phases.complete(told)
                    self.link.send(told)
                else:
                    self.agenda.append(effect)
                    self.changed.notify_all()

    # --------------------------------------------------------------------------- switching on

    def store(self, generation: int) -> LauncherStore:
        """The c10d store of a generation; 0 lives as long as the job."""
        return LauncherStore(
            lambda call: self.link.call(call, call.timeout_s),
            rank=self.env.rank,
            generation=generation,
            timeout=timedelta(minutes=30),
        )

    @property
    def refusal(self) -> str:
        """Why nothing is protected, "" if something is or may be."""
        return self.guarantee.refusal

    def refuse(self, reason: str) -> None:
        """No protection for this script, for this reason; it runs as under torchrun.

        Raises RanksDiffer where somebody is lost already: then the run is over.
        """
        if self.lost and not self.acting:
            sentence = TOO_LATE.format(reason)
            self.voice.discord(sentence)
            raise RanksDiffer(sentence)
        if not self.refusal:
            self.runtime.active &= self.machine is not None  # else torch goes on by itself
            self.guarantee.state("unprotected", reason)

    def serve(self, strategy: Strategy, layout: Layout, over: Accelerator | None) -> bool:
        """`strategy` is to serve a model that is replicated as `layout` says; gradients go `over`
        an accelerator, if one is given. False if it is not to.
        """
        if self.hooked and strategy.early:
            self.refuse(IN_BACKWARD)
        if self.refusal:
            return False
        if self.strategy is not None:
            if self.strategy is not strategy or layout != self.layout:
                self.refuse("the script trains models that are replicated in different ways")
            return not self.refusal
        self._first_view()
        self.voice.topology(strategy.name, layout)
        if len(layout.replicas) == 1:
            self.refuse("the script has one replica: there is nothing to survive on")
            return False
        self.layout = self.runtime.layout = layout
        self.strategy, self._over = strategy, over
        if strategy.early:
            self.runtime.microbatches = []  # what was trained so far was not this
        return True

    def _first_view(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.view is not None, timeout=VIEW_WITHIN_S)
            if self.view is None:
                raise RuntimeError(f"the coordinator said nothing for {VIEW_WITHIN_S:.0f} s")

    def begin(self) -> None:
        """The first synchronising backward is over, and torch has reduced it: all ranks are here.

        What all of them can serve is protected from the next transaction on.
        """
        counts = len(self.runtime.microbatches)
        fabric = protection.connect(self)
        assert self.layout is not None, "served"
        self._booth = Booth(fabric, range(self.layout.world_size))
        try:
            refusal = self.verification.fitness(fabric, self.booth)
            if refusal:
                self.refuse(refusal)
                return
            exact_mode.require(self)
            self.impersonator.earlier.ended(self.runtime.microbatches, self.impersonator.optimizers)
            protection.take_over(self, fabric, counts)
            self.verification.first()
        except Superseded:
            protection.await_restart(self)
        ATTACHED.training = True
        self._begin_transaction()

    def new_reducer(self) -> Reducer:
        """One for the gradients of a model; all ranks make theirs in the same order."""
        fabric, layout = self.fabric, self.layout
        assert fabric is not None and layout is not None, "protected"
        _, shard = layout.place(self.env.rank)
        replicas = [replica[shard] for replica in layout.replicas]
        channel = fabric.open(f"gradients{shard}.{self._channels}", replicas, over=self._over)
        self._channels += 1
        channel.what = "the reduction of gradients"
        reducer = Reducer(fabric, channel)
        reducer.on_launch = self._launched
        exact_mode.sum_by(self, reducer)
        return reducer

    # --------------------------------------------------------------------------- the step goes on

    @property
    def generation(self) -> int:
        return self.view.generation if self.view is not None else 1

    @property
    def step(self) -> int:
        """The present transaction; 0 is the one that torch reduces."""
        return self.machine.step_index if self.machine is not None else 0

    @property
    def booth(self) -> Booth:
        assert self._booth is not None, "protected"
        return self._booth

    @property
    def acting(self) -> bool:
        """Another slot's microbatch is being executed."""
        return self.runtime.acting_rank is not None

    @property
    def lost(self) -> bool:
        """A replica is lost."""
        machine = self.machine
        return machine is not None and len(machine.view.live) < len(machine.layout.slots)

    def _iteration_begins(self, top: Top) -> None:
        """A loop's body begins, perhaps a microbatch's. Leave our context for successors."""
        if not self._watches:
            return
        top.evidence = Evidence()
        index = len(self.runtime.microbatches)
        if self.machine is not None and not index and self.impersonator.is_region(top):
            self.faults.strike(self.step - 1, "between")
        wanted = self.verification.wants(top)
        context = self.impersonator.capture_top(self.step, index, self._attempt, top, wanted=wanted)
        self._attempt += 1
        if self.machine is not None and context is not None:
            if not index:
                begun = [turn.top for turn in self.runtime.under_way() if turn.top is not None]
                around = [one.context for one in begun if one.context is not None]
                self.remnants.top(context, around)
                self._look(context)
            self.makeup.follow(context)

    def _look(self, top: Context) -> None:
        """Has this rank gone on as the others have, since the transaction before?"""
        before = [one for one in self.impersonator.captures.points if one.kind == "after"]
        known = before and before[-1].step == self.step - 1
        if known and self.guarantee.exact and not self.lost:
            assert self.strategy is not None and self.layout is not None, "protected"
            whole = self.strategy.whole() if self.layout.shards == 1 else ()
            self.alike.look(before[-1], top, whole)

    @property
    def _watches(self) -> bool:
        """True if the script is served, or may be once its first gradients are reduced by hand."""
        return not self.refusal and (self.strategy is not None or process_groups.several())

    def forward_begins(self, values: Any) -> None:
        """The root module's forward, in training, with these inputs."""
        self.impersonator.forward_begins(values)
        if self.acting:
            self.faults.strike(self.step, "redo")
            return
        if self.strategy is None or (self.refusal and self.machine is None):
            return
        index = len(self.runtime.microbatches)
        self._note(index)
        if index == self._usual // 2:
            self.faults.strike(self.step, "forward")

    def _note(self, index: int) -> None:
        """Leave a mark of the microbatch that is under way."""
        top = self.runtime.top_around()
        if top is not None and top.evidence is not None:
            self.remnants.mark(self.step, index, top.evidence.mark)

    def bucket_reached(self) -> None:
        """A backward brings the gradients of a bucket."""
        if not self.acting and len(self.runtime.microbatches) >= self._usual // 2:
            self.faults.strike(self.step, "backward")

    def final_in(self) -> int:
        """The generation in which the synchronising backward that runs may start its reductions.

        0 if it may not: replicas are lost, for which this rank may have to add more.
        """
        machine = self.machine
        if machine is None or self.acting:
            return 0
        with self.changed:  # a view in between would make final what a loss has yet to fill
            return 0 if machine.surprised or self.lost else machine.view.generation

    def backward_begins(self, losses: Any) -> None:
        """A backward, from these losses."""
        self.impersonator.ends(losses)
        if self.acting:
            self.impersonator.backward_begins()
            return
        strategy = self.strategy
        if self._failure is not None:
            raise self._failure
        if strategy is None or not self.runtime.active:
            return
        microbatches = self.runtime.microbatches
        self._note(len(microbatches))
        if microbatches:
            self._between.heed(self, strategy)
        if microbatches and self._between.gradients_changed(strategy):
            self._meddled(strategy)
        if not self.runtime.microbatches:
            strategy.begin()
        strategy.backward_begins()

    def _meddled(self, strategy: Strategy) -> None:
        """The script has written to gradients that are not reduced yet."""
        if not strategy.empty():
            self.refuse(CHANGED)
            return
        self.feed(Discarded())  # a loss that is not finite, say: the transaction begins anew
        if self.lost:
            self.makeup.downgrade(BEGUN_ANEW)
        self._untold.clear()
        self._begin_transaction()

    def backward_done(self) -> None:
        """A backward of the script has returned."""
        if self.acting:
            self.impersonator.backward_done()
            return
        strategy = self.strategy
        if not self.runtime.active or not self._watches and self.machine is None:
            return
        if strategy is not None:
            strategy.backward_done()
        microbatch = self.runtime.note_backward()
        self._attempt = 0
        if microbatch is not None:
            self.impersonator.ran(self.step, microbatch, strategy)
        if strategy is None:
            return
        if self.machine is None:
            if strategy.synced:
                self.begin()
        else:
            if microbatch is None:
                self.refuse(self.runtime.why_no_loop())
            index = self._accumulated()
            self._untold.append(Accumulated(identity=(self.machine.slot, index)))
            self.remnants.enters((self.machine.slot, self.step, index + 1))
            if strategy.synced:
                self.settle()
        if not strategy.synced:
            self._between.left(strategy)

    def _accumulated(self) -> int:
        machine = self.machine
        assert machine is not None, "protected"
        with self.changed:
            return len([one for one in machine.done if one[0] == machine.slot]) + len(self._untold)

    def _launched(self, number: int, total: int) -> None:
        self.faults.strike(self.step, "reduce", number, total)

    # --------------------------------------------------------------------------- settling

    def settle(self) -> None:
        """Make the gradients of this transaction whole, agreed and final."""
        if self.machine is None or self.strategy is None or self.acting:
            return
        step, self.phases.digest = self.step, parameter_checksum.due(self)
        if (context := self.impersonator.last_after()) is not None:
            self.remnants.after(context)
        self.remnants.rests()
        self.guard.check()
        self.feed(Settled(microbatches=self._accumulated()))
        try:
            self._settling.run()
        except (TimedOut, RanksDiffer) as failure:
            self._failure = failure
            raise
        for reducer in self.strategy.reducers():
            reducer.deliver()
        self.impersonator.earlier.ended(self.runtime.microbatches, self.impersonator.optimizers)
        self.makeup.end_step(step)
        self.alike.committed(self)  # first: a proof then knows what ranks do not have in common
        self.verification.committed()
        self._begin_transaction()

    def _begin_transaction(self) -> None:
        self._usual = max(1, len(self.runtime.microbatches))
        if self.strategy is not None and self.machine is not None:
            for reducer in self.strategy.reducers():
                reducer.begin()
            self.remnants.enters((self.machine.slot, self.step, 0))
        self.runtime.begin_step()
        self._between.forget()

    # --------------------------------------------------------------------------- the end

    def farewell(self) -> None:
        """The script ended normally; nobody has to wait for this rank."""
        self.feed(Ended())
        generation = self.generation if self.machine is None else self._part()
        self.voice.farewell(self.step, generation)

    def _part(self) -> int:
        assert self.fabric is not None, "protected"
        return self.fabric.part()

    def await_end(self, error: BaseException) -> None:
        """A collective of our own replica broke. If a rank of it died, we are about to be ended."""
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            with self.changed:
                self.changed.wait_for(lambda: False, timeout=VICTIM_WAITS_S)


IN_BACKWARD = (
    "the script uses gradients within the backward pass (register_post_accumulate_grad_hook), as "
    "an optimizer that steps in it does: then nobody can vote on the step"
)
