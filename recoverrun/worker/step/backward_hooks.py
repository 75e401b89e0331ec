"""The beginning and the end of a backward of the script; one inside another belongs to it."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ft_collectives.communicators.script_modes import aside, caller_of
from recoverrun.worker.step.held_exceptions import HELD
from recoverrun.worker.step.interfaces import HearsBackwards


class BackwardHooks:
    """Tells the driver, and before that whoever looks for gradients that are reduced by hand."""

    def __init__(self, driver: HearsBackwards, look: Callable[[], None]) -> None:
        """`look` is called after each backward of a script of which no model is served."""
        self._driver = driver
        self._look = look
        self._depth = 0

    def backward(self, losses: Any) -> "_Backward":
        """Around a backward from `losses`. Raises `Unwind` where re-executed code is at its end."""
        return _Backward(self, losses)

    @aside
    def begins(self, losses: Any) -> None:
        """A backward begins, perhaps within another one."""
        if not self._depth:
            worker = self._driver.worker
            worker.failpoints.backward_begins()
            if (unvoted := worker.unvoted) is not None:
                unvoted.on_backward(losses)
            self._driver.backward_begins(losses)
        self._depth += 1

    @aside
    def ends(self, *, whole: bool) -> None:
        """The backward has returned, or has raised an error and is not `whole`."""
        with HELD:
            self._depth -= 1
            if whole and not self._depth:
                if self._driver.worker.strategy is None:
                    self._look()
                self._driver.backward_done()

    def skips(self) -> bool:
        """True if this backward of re-executed code is to be passed over: it belongs to an earlier
        transaction or microbatch.
        """
        return not self._depth and self._driver.replayer.skips()

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Tensor.backward`, `autograd.backward`."""

        def wrapper(*args: Any, **kwargs: Any) -> None:
            if self.skips():
                return
            with self.backward(args[0] if args else kwargs.get("tensors")):
                original(*args, **kwargs)

        return wrapper

    def hooking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Tensor.register_post_accumulate_grad_hook`: gradients are used while backward runs."""

        def wrapper(tensor: Any, hook: Any) -> Any:
            handle = original(tensor, hook)
            caller = caller_of(sys._getframe(1)).f_globals.get("__name__", "")
            if tensor.requires_grad and caller.partition(".")[0] not in ("torch", "recoverrun"):
                self._driver.hooks_gradients()
            return handle

        return wrapper


class _Backward:
    """A class, not a generator under `contextmanager`: it is entered in each microbatch."""

    __slots__ = ("_hooks", "_losses")

    def __init__(self, hooks: BackwardHooks, losses: Any) -> None:
        self._hooks = hooks
        self._losses = losses

    def __enter__(self) -> None:
        self._hooks.begins(self._losses)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hooks.ends(whole=kind is None)
