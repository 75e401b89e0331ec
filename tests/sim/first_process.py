"""The model of a rank's first process: what it does before recovery can help.

Step 0 is torch's own: no machine, one reduction (`torch`) that no view interrupts, and whoever sees
it fail ends by that error. Then a rank takes over, all of them agree (`agree`), and each says what
it promises.
"""

from ft_collectives.step.machine import StepMachine
from ft_collectives.step.step_events import Send
from rendezvous.protocol.views import Identity, View
from tests.sim.plane import Key
from tests.sim.worker import Worker

BY_TORCH = 1 << 30
"""Stands for the generation of what torch reduces: no view ends it."""


class FirstProcess(Worker):
    def _learn(self) -> None:
        self.link.introduce()
        self._point("start")
        self._soon(self._forward)

    def _begin(self) -> None:
        """The backwards of step 0 are over: torch reduces."""
        self.busy = "torch"
        members = tuple(replica[self.shard] for replica in self.layout.replicas)
        self.sums.enter("torch", BY_TORCH, self.shard, members, self.sums.content)

    def _take_over(self, key: Key) -> None:
        """Torch has reduced; all ranks tell each other what they can promise."""
        assert self.view is not None, "the script runs after the first view"
        self.machine = StepMachine(rank=self.rank, layout=self.layout, view=self.view)
        self.sums.views[self.view.generation] = self.view
        self._take(0, (key,))
        for effect in self.machine.reduced_by_torch(self.sim.plan.counts[0]):
            assert isinstance(effect, Send), f"nothing is left to do: {effect}"
            self.link.send(effect.message)
        self._next_step()
        self.busy, self.reducing = "agree", self.view.generation
        self._point("agree")
        self.sums.enter("agree", self.view.generation, -1, self.sim.plan.world, 0)

    def _agreed(self) -> None:
        if self.busy != "agree":
            return
        self.busy = ""
        self._point("agreed")
        self.link.promise()
        self._go_on()

    def _hear_view(self, view: View) -> None:
        first = self.view is None
        super()._hear_view(view)
        if first:
            self._soon(self._learn)

    def _abort(self, below: int) -> None:
        super()._abort(below)
        if self.busy == "agree" and self.reducing < below:
            self.busy = "over"
            self.link.await_restart()

    def _computed(self, identity: Identity) -> None:
        if self.machine is not None:
            super()._computed(identity)
            return
        self.busy = ""
        self.sums.add(self.step, identity)
        self.index += 1
        self._soon(self._forward if self.index < self.sim.plan.counts[0] else self._begin)

    def completed(self, key: Key, result: object) -> None:
        if key.kind == "torch":
            self._soon(self._take_over, key)
        elif key.kind == "agree":
            self._soon(self._agreed)
        else:
            super().completed(key, result)

    def failed(self, key: Key) -> None:
        if key.kind == "torch":
            self.sim.life.fail(self.rank, f"RuntimeError: rank {self.rank} saw a connection closed")
        else:
            super().failed(key)
