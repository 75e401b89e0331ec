"""Pipelines of torch (`torch.distributed.pipelining`), whose stages are ranks of one replica.

One `step` of a schedule is forward and backward of a microbatch of the script's, which it cuts into
smaller ones: here that is one backward. Each stage has FSDP reduce once, and divides its `p.grad`
by the number of parts (`_PipelineStageBase.scale_grads`, torch 2.13). Other stages of the rank may
still have parts to go then, and in the midst of a step no other can be executed. So the transaction
is settled as `step` ends, and gradients are divided after that.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from recoverrun.worker.step.backward_hooks import BackwardHooks
from recoverrun.worker.step.interfaces import HearsBackwards

MODULE = "torch.distributed.pipelining"


class Pipelines:
    """Stands around `step` of every schedule and `scale_grads` of every stage."""

    def __init__(self, driver: HearsBackwards, backwards: BackwardHooks) -> None:
        self._driver = driver
        self._backwards = backwards
        self._unscaled: list[Callable[[], None]] | None = None  # while a step runs
        self._given: dict[int, list[tuple[Any, Any]]] = {}  # gradients, by the id of their stage

    def step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`step` of a schedule; `eval` calls it, too, for a forward pass alone."""

        def wrapper(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            if not schedule._has_backward or self._backwards.skips():
                return original(schedule, *args, **kwargs) if not schedule._has_backward else None
            driver = self._driver
            driver.forward_begins((*args, kwargs.get("target")))
            outer, self._unscaled = self._unscaled, []
            try:
                with self._backwards.backward(None), driver.schedule():
                    result = original(schedule, *args, **kwargs)
                for scale in self._unscaled:
                    scale()
            finally:
                self._unscaled = outer
            return result

        return wrapper

    def infers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`_forward_metadata_inference` of a stage, with which its first step begins: by a forward
        and a backward torch finds out what stages send each other, and drops all gradients then.
        A process that came back has been given some.
        """

        def wrapper(stage: Any, *args: Any, **kwargs: Any) -> Any:
            params = [one for one in stage.submod.parameters() if one.grad is not None]
            if params:
                self._given[id(stage)] = [(one, one.grad) for one in params]
            for one in params:
                one.grad = None
            return original(stage, *args, **kwargs)

        return wrapper

    def inferred(self, original: Callable[..., None]) -> Callable[..., None]:
        """`_post_metadata_inference_cleanup`: all gradients are dropped."""

        def wrapper(stage: Any) -> None:
            original(stage)
            for param, gradient in self._given.pop(id(stage), ()):
                param.grad = gradient

        return wrapper

    def scale_grads(self, original: Callable[..., None]) -> Callable[..., None]:
        """Scale final gradients; those of another rank's microbatch are not scaled here."""

        def wrapper(stage: Any, factor: int) -> None:
            if self._unscaled is None:
                original(stage, factor)
            elif not self._driver.worker.acting:
                self._unscaled.append(partial(original, stage, factor))

        return wrapper
