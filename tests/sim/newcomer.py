"""The model of a process that is to take the place of a lost rank.

It runs alone up to its loop, says that it is ready, and waits for the view that it joins by. Then
it takes the state of the top of that step from a member, once that one has told where it is, and
trains on meanwhile: what it sends cannot change before the vote of the step, and that needs the
newcomer.
"""

from ft_collectives.step.machine import StepMachine
from rendezvous.protocol import donors
from rendezvous.protocol.arrival_messages import Ready
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Message
from rendezvous.protocol.views import View
from tests.sim.worker import Surroundings, Worker

READY_AGAIN_S = 1.0


class Newcomer(Worker):
    def __init__(self, sim: Surroundings, rank: int, incarnation: int) -> None:
        super().__init__(sim, rank, incarnation)
        self.stage = "starting"
        self._donor: Worker | None = None

    def start(self) -> None:
        self._point("started")
        super().start()

    def hear(self, message: Message) -> None:
        if self.machine is not None:
            super().hear(message)
        elif isinstance(message, View):
            self._alone(message)

    # --------------------------------------------------------------------------- alone

    def _alone(self, view: View) -> None:
        first = self.view is None
        if not self.link.hear(view):
            return
        if self.rank in view.joined:
            self._join(view)
        elif self.rank in view.live_ranks:
            self._away("a view has it as a member, and it missed the one by which it joined")
        elif first:
            self.stage = "alone"
            self._after(self.sim.engine.jitter(self.sim.plan.prologue_s), self._before_loop)

    def _before_loop(self) -> None:
        self.stage = "ready"
        self._point("ready")
        self._say_ready()

    def _say_ready(self) -> None:
        if self.stage == "ready":
            self.link.send(Ready(rank=self.rank, incarnation=self.incarnation))
            self._after(READY_AGAIN_S, self._say_ready)

    def _away(self, reason: str) -> None:
        self._point("away")
        self.sim.coverage[f"newcomer leaves: {reason}"] += 1
        self.sim.life.fail(self.rank, "", ExitCode.AWAY)

    # --------------------------------------------------------------------------- its place

    def _join(self, view: View) -> None:
        self.stage = "joining"
        step = view.from_step
        counts = self.sim.plan.counts
        self.machine = StepMachine.arrived(
            rank=self.rank, layout=self.layout, view=view, step=step,
            microbatches=counts[min(step, len(counts) - 1)],
        )  # fmt: skip
        self.sums.views[view.generation] = view
        self.step = step
        self._donor = self.sim.workers[donors.donor_in(self.layout, view, self.rank)]
        self.sim.asked(self, self._donor)
        self._point("joined")
        self._donor.stop.when_made(view.generation, self._fetch)

    def _hear_view(self, view: View) -> None:
        super()._hear_view(view)
        if self.stage != "joining" or self.view is None or self._donor is None:
            return
        if not donors.may_tell(self._donor.rank, self.view):
            self._away("a view is without its donor")

    def _fetch(self) -> None:
        """Its donor has told where its state is."""
        if self.alive:
            self._after(self.sim.engine.jitter(self.sim.plan.transfer_s), self._receive)

    def _receive(self) -> None:
        """All of the state is here, or the donor has ended before."""
        assert self._donor is not None and self.machine is not None, "it has joined"
        if not self._donor.alive:
            self._away("its donor has ended")
            return
        if self.step >= self.sim.plan.ends[self.slot]:
            self._away("its loop is over")
            return
        self.state = self._donor.state
        self.sim.received(self)
        self.stage = "first step"
        self._point("received")
        self._go_on()

    def _next_step(self) -> None:
        self.stage = ""
        super()._next_step()
