"""The knowledge of this rank of the job and of the present transaction.

The driver changes it, as the script trains and as the launcher speaks. All others are given it and
read it. It imports nothing of what is built upon it.
"""

import math
import threading
from collections.abc import Callable
from datetime import timedelta

from ft_collectives.communicators.errors import RanksDiffer
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.launcher_store import LauncherStore
from ft_collectives.step.machine import StepMachine
from recoverrun.worker.context.context_buffer import ContextWriter
from recoverrun.worker.step.call_sites import CallSites
from recoverrun.worker.step.cpu_waits import CpuWaits
from recoverrun.worker.step.failpoints import Failpoints
from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.step.left_buffers import LeftBuffers
from recoverrun.worker.step.protection import Protection
from recoverrun.worker.step.reporter import Reporter
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.timing import StepTiming
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.tracking.loop_extent import extent
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Promise
from rendezvous.protocol.views import View
from rendezvous.protocol.worker_env import UNASKED, UNASKED_AFTER_S, WorkerEnv
from rendezvous.transport.worker_link import WorkerLink

NO_SNAPSHOTS = "snapshots are off:"

FIRST_AFTER = f" (the first one is taken after {UNASKED_AFTER_S:.0f} s)"

TOO_LATE = "a replica is lost, and what it had to do cannot be made up any more: {}"


class WorkerState:
    """The state of one worker. `runtime` tells where the script is; `link`: to the launcher."""

    def __init__(self, env: WorkerEnv, link: WorkerLink, runtime: ScriptRuntime) -> None:
        self.env = env
        self.link = link
        self.runtime = runtime
        self.progress = runtime.progress
        self.context_buffer = ContextWriter(env.context)
        self.left_buffers = LeftBuffers(env.context)
        # A kill stands for a machine that fails: no microbatch is to blame for it.
        self.failpoints = Failpoints(
            env.inject, env.rank, before=self.context_buffer.blames_none, birth=env.birth
        )
        self.reporter = Reporter(link, env.rank, lambda: self.generation, exact=env.exact)
        self.guarantee = Guarantee(
            self.reporter,
            shape=lambda: max(1, len(runtime.microbatches)),
            extent=lambda: extent(runtime.microbatches, runtime.stack),
        )
        self.timing = StepTiming()
        self.call_sites = CallSites()
        self.cpu_waits = CpuWaits()
        self.unvoted: UnvotedSteps | None = None  # set where snapshots may be taken
        self.returns = env.returns  # lost replicas may come back; False once something forbids it
        self.failure = ""  # the exception that ended the script, while its process has not ended
        self.on_no_snapshots: Callable[[str], None] = lambda why: None  # called as they end
        self.on_not_reached: Callable[[str], None] = lambda why: None
        """Called in a process that cannot come to where a snapshot was taken."""
        self.drains = False  # a SIGTERM was sent: one more snapshot is wanted before the job ends
        self.changed = threading.Condition()
        self.view: View | None = None  # the newest, None until the coordinator has spoken
        self.strategy: Strategy | None = None  # None until a model is served
        self.layout: Layout | None = None
        self.fabric: Fabric | None = None  # None until the first transaction is over
        self.invited: tuple[int, ...] = ()  # lost ranks that are ready to take part again
        self.place: View | None = None  # the view in which this process took a lost rank's place
        self.joined: tuple[int, ...] = ()  # ranks of the latest return
        self.joined_at = -1  # the transaction from which on lost ranks take part again
        self._protection: Protection | None = None

    # --------------------------------------------------------------------------- what is known

    @property
    def generation(self) -> int:
        return self.view.generation if self.view is not None else 1

    @property
    def protected(self) -> bool:
        """True if gradients are ours to reduce."""
        return self._protection is not None

    @property
    def protection(self) -> Protection:
        """The parts that there are once `protected`."""
        assert self._protection is not None, "protected"
        return self._protection

    @property
    def machine(self) -> StepMachine | None:
        return self._protection.machine if self._protection is not None else None

    @property
    def transaction(self) -> int:
        """The number of the present one; 0 is the one that torch reduces, and all before it."""
        return self._protection.machine.step_index if self._protection is not None else 0

    @property
    def transacts(self) -> bool:
        """True if steps are transactions, or will be: they end with a vote."""
        return self.protected or (self.strategy is not None and not self.refusal)

    @property
    def step(self) -> int:
        """The present transaction, or the step of a script that has none."""
        if self.transacts or self.unvoted is None:
            return self.transaction
        return self.unvoted.index

    @property
    def lost(self) -> bool:
        """True if a replica is lost, or takes part again for the first time in this transaction."""
        if self._protection is None:
            return False
        machine = self._protection.machine
        away = len(machine.view.live) < len(machine.layout.replicas)
        return away or machine.step_index == self.joined_at

    @property
    def joining(self) -> bool:
        """True in the transaction in which lost ranks take part again."""
        machine = self.machine
        return machine is not None and machine.step_index == self.joined_at

    @property
    def acting(self) -> bool:
        """True if another slot's microbatch is being executed."""
        return self.runtime.mode.acting_rank is not None

    def store(self, generation: int) -> LauncherStore:
        """The c10d store of a generation; 0 lives as long as the job."""
        link = self.link
        return LauncherStore(
            lambda call: link.call(call, call.timeout_s),
            rank=self.env.rank,
            generation=generation,
            timeout=timedelta(minutes=30),
        )

    # --------------------------------------------------------------------------- what changes

    def hear(self, view: View) -> None:
        """The coordinator says who lives."""
        with self.changed:
            if self.view is None or view.generation > self.view.generation:
                self.view = view
                if view.joined:
                    self.joined, self.joined_at = view.joined, view.from_step
                if self.env.rank in view.joined:
                    self.place = view
            self.changed.notify_all()

    def serve(self, strategy: Strategy, layout: Layout) -> None:
        """The script's model is replicated as `layout` says."""
        self.strategy, self.layout = strategy, layout
        self.runtime.layout = layout

    def connect(self, fabric: Fabric) -> None:
        """The first transaction is over: from now on ranks may talk over `fabric`."""
        with self.changed:
            self.fabric = fabric

    def protect(self, protection: Protection) -> None:
        """Gradients are ours from now on."""
        with self.changed:
            self._protection = protection
        self.progress.protects()

    def others_wait_s(self) -> float:
        """Seconds that other ranks wait for this one in a collective, by the script's own limit."""
        return self.fabric.limits.within_s() if self.fabric is not None else math.inf

    @property
    def refusal(self) -> str:
        """The reason why nothing is protected, "" if something is or may be."""
        return self.guarantee.refusal

    @property
    def without_survivors(self) -> Promise:
        """The promise of this run where no step outlives a loss."""
        if self.unvoted is None:
            return "unprotected"
        asked = self.env.snapshot_every != UNASKED
        taken = asked or not (self.guarantee.protects or self.unvoted.unserved())
        return "rollback" if taken else "unprotected"

    def refuse(self, reason: str, *, snapshots: bool = True) -> None:
        """No step of this script outlives a loss, for this reason. All ranks go back to `snapshots`
        if these can be taken; else it runs as under torchrun.

        Raises RanksDiffer where somebody is lost already: then the run is over.
        """
        if self.lost and not self.acting:
            sentence = TOO_LATE.format(reason)
            self.reporter.discord(sentence)
            raise RanksDiffer(sentence)
        if self.refusal:
            return
        if snapshots and self.without_survivors == "rollback":
            waits = self.env.snapshot_every == UNASKED and not self.env.restore
            self.guarantee.state("rollback", reason + FIRST_AFTER * waits)
            return
        if not self.protected:
            self.runtime.mode.retire()
        self.guarantee.state("unprotected", reason)
        self.take_no_snapshots("the script is not served")

    def give_back(self) -> None:
        """Let torch reduce by itself from now on, if gradients are ours to reduce."""
        if self.protected:
            self.runtime.mode.retire()

    def roll_back(self, reason: str) -> None:
        """There is one replica, for this reason: a loss costs steps if snapshots are taken, and
        the run if not.
        """
        if self.unvoted is None:
            self.refuse(reason)
        elif not self.refusal and self.env.snapshot_every == UNASKED:
            self.guarantee.hold_back("rollback", reason)
        elif not self.refusal:
            self.guarantee.state("rollback", reason)

    def end_snapshots(self, reason: str) -> None:
        """None can be taken of this script any more: a loss ends the run from now on, or the loss
        of all replicas where there are several.
        """
        self._forget_snapshots(reason)
        if self.transacts and not self.refusal:
            self.reporter.notice(f"{NO_SNAPSHOTS} {reason}")
            return
        if not self.protected:
            self.runtime.mode.retire()
        self.guarantee.state("unprotected", f"{NO_SNAPSHOTS} {reason}")

    def take_no_snapshots(self, reason: str) -> None:
        """This script is treated otherwise. If they were asked for, or promised, that is said."""
        if self.unvoted is None:
            return
        if self.guarantee.promise == "rollback":
            self.end_snapshots(reason)
            return
        self._forget_snapshots(reason)
        if self.env.rank == 0 and self.env.snapshot_every != UNASKED:
            self.reporter.notice(f"{NO_SNAPSHOTS} {reason}")

    def _forget_snapshots(self, why: str) -> None:
        self.unvoted = None
        self.on_no_snapshots(why)
