"""Pipelines of torch (`torch.distributed.pipelining`), whose stages are ranks of one replica.

One `step` of a schedule is forward and backward of a microbatch of the script's, which it cuts into
smaller ones: here that is one backward. At its end the schedule has FSDP reduce once, and divides
`p.grad` by the number of parts (`_PipelineStageBase.scale_grads`, torch 2.13). There is nothing to
divide yet where gradients are written at the commit point; so each part is divided as it comes in.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recoverrun.hooks.backwards import Backwards
    from recoverrun.hooks.session import Session
    from recoverrun.hooks.strategy import Lender

MODULE = "torch.distributed.pipelining"
NAME = b"pipelining"
TRAINS = frozenset({"step"})
"""What leads to a backward in projects that have the module's NAME in a file."""

SCALED_TWICE = (
    "several steps of a pipeline's schedule make up one of the optimizer, and each divides the "
    "gradients of those before it once more: give the schedule scale_grads=False"
)

ALONE = (
    "the forward pass of a pipeline cannot be run alone, and Python's or numpy's numbers are drawn "
    "in each step"
)


class Pipelines:
    """Stands around `step` of every schedule and `scale_grads` of every stage."""

    def __init__(self, session: "Session", backwards: "Backwards") -> None:
        self._session = session
        self._backwards = backwards

    def step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`step` of a schedule; `eval` calls it, too, for a forward pass alone."""

        def wrapper(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            if not schedule._has_backward:
                return original(schedule, *args, **kwargs)
            session = self._session
            if session.impersonator.replaying and session.runtime.hosts_move:
                session.runtime.spoil(ALONE)
            with self._backwards.one():
                lender = self._begin(schedule._n_microbatches, schedule.scale_grads)
                try:
                    return original(schedule, *args, **kwargs)
                finally:
                    if lender is not None:
                        lender.parts = lender.divisor = 1

        return wrapper

    def scale_grads(self, original: Callable[..., None]) -> Callable[..., None]:
        """Nothing where it was done already."""

        def wrapper(stage: Any, factor: int) -> None:
            lender = self._lender()
            if lender is None or lender.divisor == 1:
                original(stage, factor)

        return wrapper

    def _lender(self) -> "Lender | None":
        session = self._session
        served = session.machine is not None and session.runtime.active
        return session.strategy.lender if served and session.strategy is not None else None

    def _begin(self, parts: int, scales: bool) -> "Lender | None":
        session, lender, strategy = self._session, self._lender(), self._session.strategy
        again = session.microbatch and not session.acting
        if strategy is not None and again and scales and parts > 1:
            session.refuse(SCALED_TWICE)
            for gradient in strategy.accumulators() if lender is not None else ():
                gradient.div_(parts)  # as torch does, after it has added the new ones
        if lender is not None:
            lender.parts, lender.divisor = parts, parts if scales else 1
        return lender
