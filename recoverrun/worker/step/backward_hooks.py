"""Where a backward of the script begins and ends; one inside another belongs to it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from recoverrun.worker.step.driver import IN_BACKWARD

if TYPE_CHECKING:
    from recoverrun.worker.step.driver import Session
    from recoverrun.worker.strategies.manual_allreduce import ByHand


class Backwards:
    """Tells the session and those who watch gradients."""

    def __init__(self, session: "Session", hand: "ByHand") -> None:
        self._session = session
        self._hand = hand
        self._depth = 0

    @contextmanager
    def one(self, losses: Any) -> Iterator[None]:
        """Around a backward from `losses`. Raises `Unwind` where re-executed code is at its end."""
        if not self._depth:
            self._session.backward_begins(losses)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth:
            if self._session.strategy is None:  # it may be one that reduces by hand
                self._hand.backward_done()
            self._session.backward_done()

    def skips(self) -> bool:
        """True if a backward of re-executed code is of an earlier transaction or microbatch."""
        return not self._depth and self._session.impersonator.skips()

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Tensor.backward`, `autograd.backward`."""

        def wrapper(*args: Any, **kwargs: Any) -> None:
            if self.skips():
                return
            with self.one(args[0] if args else kwargs.get("tensors")):
                original(*args, **kwargs)

        return wrapper

    def hooking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Tensor.register_post_accumulate_grad_hook`: gradients are used while backward runs."""

        def wrapper(tensor: Any, hook: Any) -> Any:
            handle = original(tensor, hook)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if tensor.requires_grad and caller.partition(".")[0] not in ("torch", "recoverrun"):
                self._use_within()
            return handle

        return wrapper

    def _use_within(self) -> None:
        session = self._session
        session.hooked = True
        if session.strategy is not None and session.strategy.early:
            session.refuse(IN_BACKWARD)
            session.runtime.active = False  # torch reduces by itself from now on
