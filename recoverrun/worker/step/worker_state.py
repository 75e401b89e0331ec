"""What this rank knows of the job and of the transaction that it is in.

The driver changes it, as the script trains and as the launcher speaks. All others are given it and
read it. It imports nothing of what is built upon it.
"""

import threading
from datetime import timedelta

from ft_collectives.communicators.errors import RanksDiffer
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.launcher_store import LauncherStore
from ft_collectives.step.machine import StepMachine
from recoverrun.worker.context.context_buffer import ContextWriter
from recoverrun.worker.step.failpoints import Failpoints
from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.step.protection import Protection
from recoverrun.worker.step.reporter import Reporter
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.timing import StepTiming
from recoverrun.worker.tracking.loop_tracker import ScriptRuntime
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import View
from rendezvous.protocol.worker_env import WorkerEnv
from rendezvous.transport.worker_link import WorkerLink

TOO_LATE = "a replica is lost, and what it had to do cannot be made up any more: {}"


class WorkerState:
    """Of one worker. `runtime` tells where the script is, `link` leads to the launcher."""

    def __init__(self, env: WorkerEnv, link: WorkerLink, runtime: ScriptRuntime) -> None:
        self.env = env
        self.link = link
        self.runtime = runtime
        self.context_buffer = ContextWriter(env.context)
        # A kill stands for a machine that fails: no microbatch is to blame for it.
        self.failpoints = Failpoints(env.inject, env.rank, before=self.context_buffer.rests)
        self.reporter = Reporter(link, env.rank, lambda: self.generation, exact=env.exact)
        self.guarantee = Guarantee(self.reporter, lambda: max(1, len(runtime.microbatches)))
        self.timing = StepTiming()
        self.changed = threading.Condition()
        self.view: View | None = None  # the newest, None until the coordinator has spoken
        self.strategy: Strategy | None = None  # None until a model is served
        self.layout: Layout | None = None
        self.fabric: Fabric | None = None  # None until the first transaction is over
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
        """What there is once `protected`."""
        assert self._protection is not None, "protected"
        return self._protection

    @property
    def machine(self) -> StepMachine | None:
        return self._protection.machine if self._protection is not None else None

    @property
    def step(self) -> int:
        """The present transaction; 0 is the one that torch reduces."""
        return self._protection.machine.step_index if self._protection is not None else 0

    @property
    def lost(self) -> bool:
        """True if a replica is lost."""
        machine = self.machine
        return machine is not None and len(machine.view.live) < len(machine.layout.slots)

    @property
    def acting(self) -> bool:
        """True if another slot's microbatch is being executed."""
        return self.runtime.acting_rank is not None

    @property
    def speaks_first(self) -> bool:
        """True if this rank says what all survivors would."""
        return self.view is not None and min(self.view.live_ranks, default=0) == self.env.rank

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
            self.reporter.discord(sentence)
            raise RanksDiffer(sentence)
        if not self.refusal:
            if not self.protected:
                self.runtime.mode.retire()
            self.guarantee.state("unprotected", reason)
