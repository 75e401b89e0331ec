"""Updates that belong to no step, and end snapshots if there are many."""

from collections.abc import Callable, Sequence
from typing import Any

from recoverrun.worker.arrival.held_tensors import local
from recoverrun.worker.groups import process_groups
from recoverrun.worker.rng.streams import tensor_bytes
from recoverrun.worker.step.first_updates import FirstUpdates
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.step.worker_state import WorkerState

APART = "the script's processes do not train together"

WITHIN = 10
"""Updates: a script may warm something up before its processes meet, or its loop begins."""

BY_HAND = (
    "the script has computed gradients {} times and made no torch optimizer: where its steps end is"
    " not known"
)

BACKWARDS = 16
"""A script may look at gradients before it makes its optimizer."""

ITSELF = (
    "the script has changed its parameters {} times since an optimizer of torch did: where its"
    " steps end is not known"
)

CHANGES = 16
"""Between two updates: a script may move weights for a look at gradients, as SAM does, or take
steps of an inner loop.
"""

WATCHED, ELEMENTS = 4, 1024
"""The first elements of the smallest parameters are compared."""


class UncountedUpdates:
    """Those of a process that has met no other one, and those around which no loop was seen."""

    def __init__(
        self, worker: WorkerState, steps: UnvotedSteps, optimizers: Callable[[], Sequence[Any]]
    ) -> None:
        """`optimizers` are those that the script has made so far."""
        self._worker = worker
        self._steps = steps
        self._optimizers = optimizers
        self._first_updates = FirstUpdates()
        self._apart = 0
        self._loopless = 0
        self._backwards = self._changes = 0  # since the last update
        self._seen: list[bytes] = []  # elements of parameters, as the last backward began

    def backward_begins(self) -> None:
        """One after which no optimizer makes an update may add up gradients, as many as it likes.
        That of a script which updates parameters itself finds other ones.
        """
        self._first_updates.backward_begins()
        self._backwards += 1
        optimizers = self._optimizers()
        if self._backwards == BACKWARDS and not optimizers:
            self._worker.take_no_snapshots(BY_HAND.format(BACKWARDS))
        if self._backwards > 1 and optimizers:
            self._look(optimizers)

    def _look(self, optimizers: Sequence[Any]) -> None:
        params = [
            one for opt in optimizers for group in opt.param_groups for one in group["params"]
        ]
        least = sorted((one for one in params if one.requires_grad), key=lambda one: one.numel())
        seen = [tensor_bytes(local(one).reshape(-1)[:ELEMENTS]) for one in least[:WATCHED]]
        self._changes += bool(self._seen) and self._seen != seen
        self._seen = seen
        if self._changes == CHANGES:
            self._worker.take_no_snapshots(ITSELF.format(CHANGES))

    def updated(self) -> None:
        """An optimizer has made an update."""
        self._steps.updated, self._backwards, self._changes = True, 0, 0
        self._seen = []
        runtime = self._worker.runtime
        if not self._first_updates.is_first() or runtime.training_loops:
            return
        self._loopless += 1
        if self._loopless == WITHIN:
            self._worker.take_no_snapshots(runtime.why_no_loop())

    def iteration_begins(self) -> bool:
        """An iteration of a loop begins. True if steps are this rank's to count: nothing else is
        made of its gradients.
        """
        worker = self._worker
        if worker.guarantee.promise == "rollback" or worker.env.world_size == 1:
            return True
        if worker.strategy is not None:  # there are replicas: a vote joins their ranks
            return True
        if self._steps.updated and not process_groups.several():
            self._steps.updated = False
            self._apart += 1
            if self._apart == WITHIN:
                worker.take_no_snapshots(APART)
        return False
