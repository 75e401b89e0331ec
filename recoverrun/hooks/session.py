"""A worker's side of recovery: what carries out the decisions of the in-step machine.

One thread listens to the launcher (`_listen`) and feeds views and decisions to the machine the
moment they arrive; the script's thread feeds what the script does, and at the commit point carries
out what the machine wants until the step is applied (`settle`). Both meet at one condition
variable, which communicators share (`fabric`), so that any wait ends when the members change.

In a step without losses nothing here waits for the launcher: a step costs one vote on the data
plane and one message that nobody answers.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import assert_never

import torch

from ft_collectives.elastic import ElasticGroup
from ft_collectives.fabric import Accelerator, Fabric
from ft_collectives.faults import InvariantBroken, Superseded
from ft_collectives.instep import (
    Accumulated,
    Apply,
    Break,
    Compute,
    Decided,
    Discarded,
    Effect,
    Ended,
    Event,
    InStep,
    Reduce,
    Reduced,
    Send,
    Settled,
    Tick,
    Viewed,
    Vote,
    Voted,
)
from ft_collectives.reduce import Reducer
from ft_collectives.store import LauncherStore
from ft_collectives.vote import Booth
from recoverrun.hooks import backwards, digest, exact, groups, rehearsal, slices
from recoverrun.hooks.carried import Carried
from recoverrun.hooks.crossing import Crossing
from recoverrun.hooks.faultpoints import FaultPoints
from recoverrun.hooks.guard import Guard
from recoverrun.hooks.impersonate import Impersonator
from recoverrun.hooks.kinship import Kinship
from recoverrun.hooks.makeup import MakeUp
from recoverrun.hooks.phases import Phases
from recoverrun.hooks.runtime import ScriptRuntime, Turn
from recoverrun.hooks.senses import TorchSenses
from recoverrun.hooks.sources import Sources
from recoverrun.hooks.strategy import Strategy
from recoverrun.hooks.tallies import Tallies
from recoverrun.hooks.voice import Voice
from rendezvous.env import WorkerEnv
from rendezvous.layout import Layout
from rendezvous.messages import (
    Committed,
    Decision,
    Identity,
    Legacy,
    Message,
    Promise,
    View,
)
from rendezvous.remains import Writer
from rendezvous.transport import WorkerLink

VIEW_WITHIN_S = 60.0
"""How long a worker waits for the coordinator's first word before it calls that an error."""

VICTIM_WAITS_S = 1.0
"""How long a rank whose replica broke waits for the launcher to end it, before it complains."""

LISTEN_S, IDLE_S = 0.25, 1.0  # between looks at the machine's deadlines: if it has one, if not


class Session:
    """Recovery in this worker. `protect` switches it on, once the script's groups are known."""

    def __init__(self, env: WorkerEnv, link: WorkerLink, runtime: ScriptRuntime) -> None:
        self.env = env
        self.link = link
        self.runtime = runtime
        self.faults = FaultPoints(env.inject, env.rank)
        self.impersonator = Impersonator(runtime)
        self.voice = Voice(link, env.rank, lambda: self._generation, exact=env.exact)
        self.makeup = MakeUp(self.impersonator, self.voice.downgraded)
        self.sources = Sources(runtime, self.impersonator)
        self.changed = threading.Condition()
        self.view: View | None = None
        self.layout: Layout | None = None
        self.fabric: Fabric | None = None
        self.machine: InStep | None = None
        self.reducer: Reducer | None = None
        self.strategy: Strategy | None = None
        self.promise: Promise | None = None
        self.refusal = ""
        self.phases = Phases()
        self.backwards, self.attempt = 0, 0  # of no replayable loop; at the present step
        self.dirty = self.hooked = False  # gradients are not final; hooks in the backward use them
        self.guard = Guard(self)
        self.tallies = Tallies(self)
        self.preview = self.tallies.reading.preview
        self.crossing, self._kinship, self.carried = Crossing(), Kinship(), Carried(self)
        self._booth: Booth | None = None
        self.sketch = torch.empty(0)
        self._agenda: deque[Effect] = deque()
        self._untold: deque[Accumulated] = deque()
        self._remains = Writer(env.context) if env.context else None
        runtime.on_region_top = self._region_top
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
                self._feed(Tick())

    def _hear(self, message: Message) -> None:
        match message:
            case View():
                with self.changed:
                    if self.view is None or message.generation > self.view.generation:
                        self.view = message
                    self.changed.notify_all()
                self._feed(Viewed(view=message))
                if self.fabric is not None:
                    self.fabric.change(message)
            case Decision():
                self._feed(Decided(decision=message))
            case Legacy():
                self.makeup.inherit(message)
            case _:
                ...  # nothing else is meant for a worker

    def _feed(self, event: Event) -> None:
        """Give the machine an event; messages leave at once, work waits for the script's thread.

        The script's own microbatches of the present step want nothing of anybody by themselves: the
        machine hears of them before it hears of anything else.
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
                    self._agenda.append(effect)
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

    def refuse(self, reason: str) -> None:
        """No protection for this script, for this reason; it runs as under torchrun."""
        if not self.refusal:
            self.refusal = reason
            self.runtime.active &= self.machine is not None  # else nothing is ever executed again
            self.promise = "unprotected"
            self.voice.promise(self.promise, 0, reason)

    def protect(self, strategy: Strategy, layout: Layout, over: Accelerator | None = None) -> bool:
        """Begin to serve the script with `strategy`. False: one replica, nothing to survive on.

        Gradients go `over` an accelerator, if one is given.
        """
        if self.hooked and strategy.early:
            self.refuse(backwards.IN_BACKWARD)
        if self.refusal:
            return False
        self._first_view()
        self.voice.topology(strategy.name, layout)
        if len(layout.replicas) == 1:
            self.refuse("the script has one replica: there is nothing to survive on")
            return False
        self.layout = self.runtime.layout = layout
        self.strategy = strategy
        with self.changed:
            assert self.view is not None, "just seen"
            self.machine = InStep(rank=self.env.rank, layout=layout, view=self.view)
            self.fabric = Fabric(
                rank=self.env.rank,
                view=self.view,
                store=self.store,
                changed=self.changed,
                timeout=timedelta(minutes=30),
                on_hint=self.voice.peer_fault,
            )
        ElasticGroup.alone = staticmethod(lambda: self.acting)
        ElasticGroup.unheard = staticmethod(self.impersonator.unheard)
        ElasticGroup.heard = staticmethod(self.runtime.hears)
        ElasticGroup.waits = staticmethod(self.preview.talks)
        _, shard = layout.place(self.env.rank)
        for group in list(ElasticGroup.instances):
            if len({layout.slot(rank) for rank in group.ranks}) > 1:
                group.protect(self.fabric)
        groups.late(self.fabric, layout)
        replicas = [replica[shard] for replica in layout.replicas]
        channel = self.fabric.open(f"gradients{shard}", replicas, over=over)
        self.reducer = Reducer(self.fabric, channel)
        self.reducer.on_launch = self._launched
        exact.enter(self)
        self._booth = Booth(self.fabric, range(layout.world_size))
        self.impersonator.buffers = strategy.buffers
        return True

    def _first_view(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.view is not None, timeout=VIEW_WITHIN_S)
            if self.view is None:
                raise RuntimeError(f"the coordinator said nothing for {VIEW_WITHIN_S:.0f} s")

    # --------------------------------------------------------------------------- the step goes on

    @property
    def _generation(self) -> int:
        return self.view.generation if self.view is not None else 1

    @property
    def step(self) -> int:
        return self.machine.step_index if self.machine is not None else 0

    @property
    def booth(self) -> Booth:
        assert self._booth is not None, "protected"
        return self._booth

    @property
    def acting(self) -> bool:
        """Another slot's microbatch is being executed."""
        return self.runtime.acting_rank is not None

    def _region_top(self, turn: Turn) -> None:
        """A microbatch begins. Before the first of a step: leave our context for successors."""
        self.preview.goes_on()
        if self.machine is None or self.runtime.microbatches:
            return
        self.faults.strike(self.step - 1, "between")
        top = self.impersonator.capture_top(self.step, self.attempt, turn)
        self._leave(top.pack())
        self.makeup.begin_step(top)

    def _leave(self, context: bytes) -> None:
        if self._remains is not None:
            self._remains.write(context)

    def forward_begins(self) -> None:
        """The root module's forward, in training."""
        self.preview.goes_on()
        if self.machine is None or not self.faults.armed:
            return
        if self.acting:
            self.faults.strike(self.step, "redo")
        elif self.microbatch == self.runtime.expected // 2:
            self.faults.strike(self.step, "forward")

    def backward_reaches_bucket(self) -> None:
        if self.machine is None or not self.faults.armed or self.acting:
            return
        if self.microbatch >= self.runtime.expected // 2:
            self.faults.strike(self.step, "backward")

    @property
    def microbatch(self) -> int:
        return len(self.runtime.microbatches) + self.backwards

    def last_in_sight(self) -> int:
        """The generation in which the backward now running may start its reductions, or 0.

        It may if it is the last one before the commit point and everybody knows the plan.
        """
        machine, shape = self.machine, self.runtime.shape
        if machine is None or shape is None or shape.backwards != 1 or self.crossing.due(self):
            return 0
        with self.changed:  # a view in between would make final what a loss has yet to fill
            if machine.surprised:
                return 0
            whole = len(machine.view.live) == len(machine.layout.slots)
            extras = () if whole else machine.extras()
            if self.acting:
                last = len([one for one in extras if one not in machine.done]) == 1
            else:
                last = self.microbatch == shape.microbatches - 1 and not extras
            return machine.view.generation if last else 0

    def backward_done(self) -> None:
        """A backward of the script has returned."""
        if self.machine is None or not self.runtime.active:
            return
        if self.acting:
            shape = self.runtime.shape
            assert shape is not None, "only a known region is executed again"
            self.impersonator.backward_done(shape)
            return
        self.dirty = True
        self.preview.backward_done()
        index = self.microbatch
        if index and index == self.runtime.expected:
            self._withdraw()  # one more than in the steps before: nothing was final yet
        if self.runtime.note_backward() is None:
            if self.runtime.microbatches:
                return  # a further backward of the same microbatch
            self.backwards += 1
        self._untold.append(Accumulated(identity=(self.machine.slot, index)))
        self.tallies.backward_done()
        if not index and self.promise is None:
            self.first_microbatch()
        self.crossing.backward_done(self)

    def first_microbatch(self) -> None:
        """Nothing is known yet: keep what the rehearsal at the commit point compares."""
        assert self.strategy is not None, "protected"
        self.sketch = rehearsal.sketch(self.strategy.accumulators())
        if self.runtime.microbatches:
            turn = self.runtime.microbatches[0].turn
            self._leave(self.impersonator.capture_top(self.step, self.attempt, turn).pack())

    def _launched(self, number: int, total: int) -> None:
        self.faults.strike(self.step, "reduce", number, total)

    # --------------------------------------------------------------------------- the commit point

    def settle(self) -> None:
        """The script is about to use the gradients: make them whole, agreed and final."""
        slices.committing(self)
        if self.machine is None or not self.dirty or self.acting or not self.runtime.active:
            return
        assert self.reducer is not None, "protected"
        step, self.phases.digest = self.step, digest.due(self)
        if self.promise is None:
            rehearsal.learn(self)
        count = self.microbatch
        self.tallies.settling()
        shape = self.runtime.shape
        if not self.runtime.microbatches:
            self.refuse("gradients are used that no loop of the script's own has computed")
        elif shape is not None:
            self._leave(self.impersonator.capture_ahead(self.step + 1, shape).pack())
        self._kinship.agree(self)
        self.guard.check()
        self._feed(Settled(microbatches=count))
        while not self._carry_out(self._next()):
            pass
        self.reducer.deliver()
        self.carried.deliver()
        if self.runtime.microbatches:
            self.makeup.end_step(step, self.runtime.shape)
        self._begin_step()
        self.attempt = 0

    def discard(self, params: Iterable[torch.Tensor]) -> None:
        """The script drops gradients that it never used, on a loss that is not finite, say."""
        self.preview.goes_on()
        if self.machine is None or self.strategy is None or self.reducer is None:
            return
        if not self.strategy.drop(params):
            self.refuse("zero_grad drops a part of the gradients between backward and step")
            return
        if self.microbatch == self.runtime.expected:
            self._withdraw()
        self.carried.drop()
        self._feed(Discarded())
        self._begin_step()
        self.attempt += 1

    def _withdraw(self) -> None:
        """Reductions that this rank or another has begun are of gradients that are not final."""
        if self.machine is not None and self.reducer is not None and not self.machine.surprised:
            self.reducer.withdraw(self.machine.view.generation)

    def _begin_step(self) -> None:
        assert self.reducer is not None, "protected"
        self.reducer.begin()
        self.tallies.end_step()
        self.runtime.begin_step()
        self.backwards, self.dirty = 0, False

    def conclude(self, promise: Promise, reason: str, found: Promise | None = None) -> None:
        """The rehearsal's result; `found` and `reason` are what this rank has to say of it."""
        shape = self.runtime.shape
        if promise == "unprotected":
            self.refusal = reason
        self.makeup.exact = promise == "exact-samples"
        self.sources.rehearsed(self.makeup.exact)
        self.promise = promise
        self.voice.promise(found or promise, shape.microbatches if shape is not None else 0, reason)

    def _next(self) -> Effect:
        with self.changed:
            self.changed.wait_for(lambda: bool(self._agenda))
            return self._agenda.popleft()

    def _carry_out(self, effect: Effect) -> bool:
        """Do what the machine wants; True once the step is applied."""
        try:
            match effect:
                case Compute(identities=identities):
                    for identity in identities:
                        self._compute(identity)
                        self._feed(Accumulated(identity=identity))
                case Reduce(generation=generation):
                    self._reduce(generation)
                case Vote(generation=generation, ballot=ballot):
                    self._vote(generation, ballot)
                case Apply():
                    return True
                case Break(invariant=invariant, reason=reason):
                    self.voice.broken(invariant, reason)
                    raise InvariantBroken(invariant, reason)
                case Send():
                    raise AssertionError("messages leave when they are made")
                case _:
                    assert_never(effect)
        except Superseded:
            pass  # the machine knows the newer view, or will in a moment
        return False

    def _reduce(self, generation: int) -> None:
        assert self.reducer is not None and self.fabric is not None, "protected"
        self._kinship.redo(self)
        with self.phases.measure("reduce"):
            self.reducer.finish(generation)
        if generation > 1:
            self.phases.note("rebuild", self.fabric.rebuild_ms)
        self._feed(Reduced(generation=generation))

    def _vote(self, generation: int, ballot: tuple[int, ...]) -> None:
        with self.phases.measure("vote"):
            counts = self.booth.count(
                generation, ballot, lambda: self.faults.strike(self.step, "vote")
            )
        self._kinship.committed(generation)
        self._feed(Voted(generation=generation, counts=counts))

    # --------------------------------------------------------------------------- making up

    def _compute(self, identity: Identity) -> None:
        """Compute a lost slot's microbatch into our accumulators."""
        slot, index = identity
        shape, layout = self.runtime.shape, self.layout
        self._kinship.redo(self)
        assert shape is not None and layout is not None, "protected, and past a first step"
        _, shard = layout.place(self.env.rank)
        rank = layout.replicas[slot][shard]
        self.tallies.require_known()
        with self.phases.measure("redo"), exact.apart(self, identity):
            self.makeup.compute(rank, index, self.step, shape)

    # --------------------------------------------------------------------------- the end

    def farewell(self) -> None:
        """The script ended normally; nobody has to wait for this rank."""
        self.preview.goes_on()
        self._feed(Ended())
        generation = self._generation if self.fabric is None else self.fabric.part()
        self.voice.farewell(self.step, generation)

    def await_end(self, error: BaseException) -> None:
        """A collective of our own replica broke. If a rank of it died, we are about to be ended."""
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            with self.changed:
                self.changed.wait_for(lambda: False, timeout=VICTIM_WAITS_S)
