"""Scripts that use gradients while their backward passes run: no step of theirs can be voted on."""

from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.worker_state import WorkerState

IN_BACKWARD = (
    "the script uses gradients within the backward pass (register_post_accumulate_grad_hook), as "
    "an optimizer that steps in it does: then nobody can vote on the step"
)


class HookedGradients:
    """Notes that the script does so, and lets torch reduce from there on."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._hooked = self._gives_back = False
        self._forward = False  # one has begun whose backward is not over

    def refusal(self, strategy: Strategy) -> str:
        """The reason why `strategy` cannot serve the script, or ""."""
        return IN_BACKWARD if self._hooked and strategy.early else ""

    def found(self) -> None:
        """The script has registered a hook."""
        self._hooked, worker = True, self._worker
        if worker.strategy is not None and worker.strategy.early:
            worker.refuse(IN_BACKWARD, snapshots=not worker.protected)
            self._gives_back = True
            self._give_back()

    def forward_begins(self) -> None:
        self._forward = True

    def backward_done(self) -> None:
        self._forward = False
        self._give_back()

    def _give_back(self) -> None:
        """DDP reduces in the backward of a forward that it has prepared for it. Where we have kept
        it out of one, the gradients of that one are ours to reduce.
        """
        if self._gives_back and not self._forward:
            self._worker.give_back()
