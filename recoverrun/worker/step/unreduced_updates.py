"""The script's changes to gradients and parameters between two backwards of one transaction."""

from recoverrun.worker.step import exact_mode
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.worker_state import WorkerState

ALONE = (
    "before step {} was complete the script updated parameters with gradients that torch had not "
    "reduced: what a lost rank gave to them is gone with it"
)


class UnreducedUpdates:
    """Gradients and parameters as the last backward left them, if torch reduces later."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget what waited to be reduced."""
        self._gradients: list[tuple[int, int]] = []
        self._parameters: list[int] = []

    def left(self, strategy: Strategy) -> None:
        """A backward has ended so."""
        self._gradients, self._parameters = strategy.standing(), _versions(strategy)

    def gradients_changed(self, strategy: Strategy) -> bool:
        return strategy.standing() != self._gradients

    def heed(self, worker: WorkerState, strategy: Strategy) -> None:
        """Weaken the promise if an optimizer has taken gradients that only this rank has: replicas
        then hold different parameters.

        All ranks run the same code, so all find so; one that did it alone is found in the next
        vote (`drift_check`).
        """
        if not worker.guarantee.exact or _versions(strategy) == self._parameters:
            return
        reason = ALONE.format(worker.step)
        worker.guarantee.weaken(reason)
        exact_mode.end_if_unserved(worker, "equal-count", reason)


def _versions(strategy: Strategy) -> list[int]:
    return [param._version for param in strategy.whole()]
