"""The model of a worker: the production `StepMachine`, two threads around it, and a script.

A rank's first process begins with torch's own step (`first_process`), later ones where others are
(`newcomer`). From then on the script thread runs microbatches and, at the commit point, the effects
of the machine in their order. The control thread feeds views and decisions at any moment between
two events of the script, then aborts the collectives of older generations.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Protocol

from ft_collectives.step.machine import StepMachine
from ft_collectives.step.step_events import (
    Accumulated,
    Apply,
    Break,
    Compute,
    Decided,
    Discarded,
    Effect,
    Ended,
    Event,
    Invited,
    Reduce,
    Reduced,
    Send,
    Settled,
    Tick,
    Viewed,
    Vote,
    Voted,
)
from rendezvous.protocol import donors
from rendezvous.protocol.arrival_messages import Arrival
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Decision, Message
from rendezvous.protocol.views import Identity, View
from tests.sim.coordinator_link import CoordinatorLink, Wire
from tests.sim.engine import Engine
from tests.sim.gradient_sums import GradientSums
from tests.sim.plane import Key, Plane
from tests.sim.stop import Stop

State = tuple[tuple[Key, ...], ...]
"""What parameters are made of: the sums that each step was taken with."""


class Deaths(Protocol):
    """The ways in which a process ends by itself."""

    def leave(self, rank: int) -> None: ...
    def fail(self, rank: int, error: str, code: int = 1) -> None: ...


class Surroundings(Wire, Protocol):
    """The interface of the simulation to a worker."""

    engine: Engine
    plane: Plane

    def point(self, rank: int, step: int, name: str) -> None: ...
    def fed(self, worker: "Worker", event: Event, effects: list[Effect]) -> None: ...
    def applied(self, worker: "Worker", step: int, keys: tuple[Key, ...]) -> None: ...
    def asked(self, worker: "Worker", donor: "Worker") -> None: ...
    def received(self, worker: "Worker") -> None: ...
    @property
    def workers(self) -> "Mapping[int, Worker]": ...
    @property
    def coverage(self) -> Counter[str]: ...
    @property
    def life(self) -> "Deaths": ...


class Worker:
    """One process of a rank. Those of a replica meet if they have the same birth."""

    stage = ""  # of one that comes back, until its first step is over

    def __init__(self, sim: Surroundings, rank: int, incarnation: int = 0) -> None:
        self.sim = sim
        self.rank = rank
        self.incarnation = incarnation
        self.state: State = ()
        self.layout = Layout(sim.plan.layout)
        self.slot, self.shard = self.layout.place(rank)
        self.alive = True
        self.paused_until = 0.0
        self.link = CoordinatorLink(sim, rank, incarnation)
        self.stop = Stop(sim, rank)
        self.invited: tuple[int, ...] = ()  # lost ranks that are ready to take part
        self.machine: StepMachine | None = None
        self.step = 0  # the script's own count
        self.index = 0
        self.discarded = -1  # the step whose gradients the script has dropped
        self.at_commit_point = False
        self.busy: str = ""  # what the script thread waits in
        self.todo: deque[Effect] = deque()
        self.sums = GradientSums(sim.plane, rank, self.layout, sim.plan.buckets)
        self.reducing = 0  # the generation that the script thread reduces in
        self.tick_at = 0.0

    # --------------------------------------------------------------------------- life

    def start(self) -> None:
        self.link.greet()

    @property
    def view(self) -> View | None:
        """The newest one heard."""
        return self.link.view

    def _soon(self, call: object, *args: object) -> None:
        self.sim.on(self.rank, self.sim.engine.jitter(self.sim.plan.thread_s), call, *args)

    def _after(self, delay_s: float, call: object, *args: object) -> None:
        self.sim.on(self.rank, delay_s, call, *args)

    def _point(self, name: str) -> None:
        self.sim.point(self.rank, self.step, name)

    # --------------------------------------------------------------------------- control thread

    def hear(self, message: Message) -> None:
        match message:
            case View():
                self._hear_view(message)
            case Decision() if self.machine is not None:
                self._point("decided")
                self._feed(Decided(decision=message))
            case Arrival(generation=generation, ranks=ranks) if self.machine is not None:
                self.invited = ranks
                self._point("invited")
                self._feed(Invited(generation=generation))
            case _:
                pass

    def _hear_view(self, view: View) -> None:
        newer = self.link.hear(view)
        if self.machine is None:
            return
        self._feed(Viewed(view=view))
        if newer:
            self.sums.views[view.generation] = view
            self._point("viewed")
            self._soon(self._abort, view.generation)
            self.stop.heard()

    def _abort(self, below: int) -> None:
        """Leave the collectives of generations before `below`; the script thread comes back."""
        self.sim.plane.leave(self.rank, below)
        if self.busy in ("reduce", "vote") and self.reducing < below:
            self.busy = ""
            self._pump()

    # --------------------------------------------------------------------------- the machine

    def _feed(self, event: Event) -> None:
        assert self.machine is not None, "nothing is fed before the topology is known"
        effects = self.machine.step(event, self.sim.engine.now)
        self.sim.fed(self, event, effects)
        for effect in effects:
            match effect:
                case Send(message=message):
                    self.link.send(message)
                case Break(invariant=invariant, reason=reason):
                    self.link.report_broken(self.machine.view.generation, invariant, reason)
                case _:
                    self.todo.append(effect)
        self._arm()
        self._pump()

    def _arm(self) -> None:
        assert self.machine is not None, "nothing is armed before the topology is known"
        deadline = self.machine.deadline()
        if deadline is not None and deadline != self.tick_at:
            self.tick_at = deadline
            self._after(max(0.0, deadline - self.sim.engine.now), self._tick, deadline)

    def _tick(self, deadline: float) -> None:
        assert self.machine is not None, "armed by the machine"
        if self.machine.deadline() == deadline:
            self.tick_at = 0.0
            self._feed(Tick())

    # --------------------------------------------------------------------------- script thread

    def _forward(self) -> None:
        """Begin the next home microbatch."""
        self._point("forward")
        identity = (self.slot, self.index)
        self._compute(identity)
        if (
            self.step
            and self.sim.plan.overlap
            and self.index == self.sim.plan.counts[self.step] - 1
        ):
            half_s = 0.5 * self.sim.plan.microbatch_s
            self._after(half_s, self._launch_early, self.step)

    def _compute(self, identity: Identity) -> None:
        """One microbatch, in lockstep with the shard mates."""
        self.busy = "compute"
        mates = self.layout.replicas[self.slot]
        self.sums.enter("mates", self.incarnation, self.slot, mates, (self.step, *identity))

    def _computed(self, identity: Identity) -> None:
        self.busy = ""
        self.sums.add(self.step, identity)
        home = not self.at_commit_point
        self._feed(Accumulated(identity=identity))
        if not home:
            return
        self.index += 1
        if self._discards():
            return
        if self.index < self.sim.plan.counts[self.step]:
            self._soon(self._forward)
            return
        self._point("settle")
        self.at_commit_point = True
        self._feed(Settled(microbatches=self.sim.plan.counts[self.step]))

    def _discards(self) -> bool:
        """Drop the gradients and begin the step anew, once."""
        after = dict(enumerate(self.sim.plan.discards)).get(self.step, 0)
        if self.index != after or self.discarded == self.step:
            return False
        self.discarded = self.step
        self.sums.drop()
        self.index = 0
        self._feed(Discarded())
        self._soon(self._forward)
        return True

    def _launch_early(self, step: int) -> None:
        """Buckets start in the last backward, if nothing but that microbatch is missing in them."""
        machine = self.machine
        assert machine is not None, "the script runs after the topology is known"
        last = self.busy == "compute" and self.index == self.sim.plan.counts[self.step] - 1
        if self.step != step or not last or self.at_commit_point or machine.plan_is_stale:
            return
        if machine.extras():
            return
        many = self.sim.engine.rng.randint(0, self.sim.plan.buckets)
        generation = machine.view.generation
        self.sums.launch_early(many, generation, (self.step, self.slot, self.index))

    def _pump(self) -> None:
        if self.at_commit_point and not self.busy and self.todo:
            self.busy = "thread"
            self._soon(self._act)

    def _act(self) -> None:
        """The script thread takes the next effect."""
        self.busy = ""
        if not self.todo:
            return
        effect = self.todo.popleft()
        match effect:
            case Compute(identities=identities):
                self._point("redo")
                assert len(identities) == 1, f"one at a time: {identities}"
                self._compute(identities[0])
            case Reduce(generation=generation):
                self._reduce(generation)
            case Vote(generation=generation, ballot=ballot, invited=invited):
                self._vote(generation, (*ballot, int(invited)))
            case Apply(step=step):
                self._apply(step)
            case _:
                raise AssertionError(f"{effect} is not for the script thread")
        self._pump()

    def _skips(self, generation: int) -> bool:
        """Half of the time the thread looks before it enters a collective of an old view."""
        assert self.view is not None, "the script runs after the first view"
        return generation < self.view.generation and self.sim.engine.chance(0.5)

    def _reduce(self, generation: int) -> None:
        self._point("reduce")
        if self._skips(generation):
            return
        self.busy = "reduce"
        self.reducing = generation
        self._late_abort(generation)
        self.sums.launch(generation)
        self._reduced()

    def _vote(self, generation: int, ballot: tuple[int, ...]) -> None:
        self._point("vote")
        if self._skips(generation):
            return
        self.busy = "vote"
        self.reducing = generation
        self._late_abort(generation)
        self.sums.enter("vote", generation, -1, self.sums.views[generation].live_ranks, ballot)

    def _late_abort(self, generation: int) -> None:
        assert self.view is not None, "the script runs after the first view"
        if generation < self.view.generation:
            self._after(0.01, self._abort, self.view.generation)

    def _apply(self, step: int) -> None:
        self._take(step, self.sums.keys)
        self._next_step()
        self._go_on()

    def _take(self, step: int, keys: tuple[Key, ...]) -> None:
        """Step with these sums: the parameters are other ones now."""
        self.state = (*self.state, keys)
        self.sim.applied(self, step, keys)

    def _next_step(self) -> None:
        self._point("apply")
        self.sums.clear()
        self.at_commit_point = False
        self.step += 1
        self.index = 0
        self._point("between")

    def _go_on(self) -> None:
        assert self.machine is not None, "steps after the first have one"
        if self.step >= self.sim.plan.ends[self.slot]:
            self._soon(self._end)
        elif self.machine.held() is not None:
            self._point("held")
            self.stop.begin(self.machine.held, self._gives_in(self.machine.view), self._go_on)
        else:
            self._soon(self._forward)

    def _gives_in(self, view: View) -> int:
        """The generation after `view`, if a newcomer would have its state from here; else 0."""
        ranks = (donors.donor_of(self.layout, view.live, rank) for rank in self.invited)
        return view.generation + 1 if self.rank in ranks else 0

    def _end(self) -> None:
        assert self.machine is not None, "a script that ends has run"
        self.link.end()
        self._feed(Ended())
        passed_by = "" if self.leads else "train.py:8"
        self.link.part(self.machine.view.generation, self.machine.step_index, passed_by)
        self._point("end")
        self._after(self.sim.engine.jitter(0.05), self.sim.life.leave, self.rank)

    @property
    def leads(self) -> bool:
        """True if this rank does what the script does on rank 0 alone, as far as it has heard."""
        live = () if self.machine is None else self.machine.view.live
        return bool(live) and self.rank == self.layout.replicas[min(live)][0]

    # --------------------------------------------------------------------------- the data plane

    def completed(self, key: Key, result: object) -> None:
        """A collective is complete here; the script thread takes it up a little later."""
        if key.kind == "mates":
            assert isinstance(result, tuple), f"an identity: {result}"
            self._after(0.0, self._computed, result[1:])
        elif key.kind == "vote":
            self._soon(self._voted, key, result)
        else:
            self._soon(self._bucket, int(key.kind.split()[1]), key)

    def _bucket(self, bucket: int, key: Key) -> None:
        if self.sums.take(bucket, key):
            self._reduced()

    def _reduced(self) -> None:
        """Feed the machine once every bucket of the generation is complete."""
        if self.busy == "reduce" and self.sums.whole(self.reducing):
            self.busy = ""
            self._point("reduced")
            self._feed(Reduced(generation=self.reducing))

    def _voted(self, key: Key, counts: tuple[int, ...]) -> None:
        if self.busy != "vote" or self.reducing != key.generation:
            return
        self.busy = ""
        self._point("voted")
        *counts_only, invited = counts
        self._feed(Voted(generation=key.generation, counts=tuple(counts_only), invited=invited))

    def failed(self, key: Key) -> None:
        """A collective raised: a hint for the coordinator, unless a newer view explains it."""
        if self.busy in ("reduce", "vote") and self.reducing == key.generation:
            self.busy = ""
        self.link.blame(key)
        self._pump()
