"""Microbatches of ranks that ended by their own doing, as the coordinator was told: nobody may
execute one again without trying it in a copy first, so each redo has to name them.
"""

from collections import Counter
from collections.abc import Iterable

from rendezvous.protocol.effects import Effect, ToRank
from rendezvous.protocol.messages import ContextBuffer, Decision
from rendezvous.protocol.shared_memory import Begun
from rendezvous.protocol.views import Identity, View
from tests.sim.violation import demand
from tests.sim.worker import Worker


def begun_by(worker: Worker) -> tuple[Begun, ...]:
    """Microbatches of its present step that a worker has computed, or is at."""
    machine = worker.machine
    if machine is None:
        return ()
    identities = {*machine.done, *machine.begun}
    return tuple((slot, machine.step_index, index, index, 0) for slot, index in sorted(identities))


def ended_itself(worker: Worker, *, ours: bool) -> bool:
    """True for half of the ends that nobody has ordered; no number is drawn for it."""
    return not ours and (worker.rank + worker.step) % 2 == 0


class Suspects:
    """The books of one history."""

    def __init__(self) -> None:
        self._left: dict[int, ContextBuffer] = {}
        self._slots: dict[int, int] = {}  # of these ranks
        self._judged = -1  # the newest generation with a decision, which may be said again

    def told(self, message: object, worker: Worker) -> None:
        """The coordinator hears what a process has left, unless another one follows it."""
        if isinstance(message, ContextBuffer) and message.incarnation == worker.incarnation:
            self._left[message.rank], self._slots[message.rank] = message, worker.slot

    def lost(self, launchers: Iterable[int]) -> None:
        """Another coordinator may never hear what these knew."""
        for rank in launchers:
            self._left.pop(rank, None)

    def wished(self, effects: list[Effect]) -> None:
        """The coordinator begins generations and decides."""
        for effect in effects:
            match effect:
                case ToRank(message=View(joined=joined)):
                    for rank in joined:
                        self._left.pop(rank, None)
                case ToRank(message=Decision(verdict="redo") as redo):
                    if redo.generation > self._judged:
                        self._judged = redo.generation
                        self._judge(redo)
                case _:
                    pass

    def _judge(self, redo: Decision) -> None:
        due = {i for one in self._left.values() if one.by_itself for i in _of(one, redo.step)}
        begun = {(i, self._slots[r]) for r, one in self._left.items() for i in _of(one, redo.step)}
        times = Counter(identity for identity, _ in begun)
        due -= {identity for identity, replicas in times.items() if replicas > 1}  # nobody does
        missing = due & {identity for _, quota in redo.targets for identity in quota}
        forgotten = sorted(missing - set(redo.suspects))
        demand(not forgotten, "suspects", f"{redo} executes {forgotten} without a trial")


def _of(left: ContextBuffer, step: int) -> set[Identity]:
    return {(slot, index) for slot, at, index, _, _ in left.begun if at == step}
