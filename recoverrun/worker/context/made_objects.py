"""Optimizers, schedulers and loss scalers of the script, in the order in which they were made.

All ranks run the same code, so the n-th of a kind is the same one on each of them.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

KINDS: dict[str, Callable[[], type]] = {
    "schedulers": lambda: torch.optim.lr_scheduler.LRScheduler,
    "scalers": lambda: torch.amp.GradScaler,
}


class MadeObjects:
    """Held weakly: the script may drop them."""

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Any]]] = {"optimizers": []}
        self.stepped = False  # an optimizer has, since the last transaction was committed

    def watch(self) -> None:
        """Note all that are made from now on of the kinds that say nothing by themselves."""
        for name, kind in KINDS.items():
            self._made[name] = []
            _watch(kind(), self._made[name])

    def note_optimizer(self, optimizer: Any) -> None:
        """`optimizer` has come to know some parameters, perhaps for the first time."""
        if not any(one is optimizer for one in self.of("optimizers")):
            self._made["optimizers"].append(weakref.ref(optimizer))

    def of(self, name: str) -> list[Any]:
        """The objects of a kind that are still there: "optimizers", "schedulers" or "scalers"."""
        return [one for ref in self._made.get(name, ()) if (one := ref()) is not None]

    def names(self) -> Iterable[str]:
        return self._made.keys()


def _watch(kind: Any, made: list[weakref.ref[Any]]) -> None:
    """Watch a class by `__new__`: a subclass need not call the `__init__` of its base."""

    def new(cls: Any, *_: Any, **__: Any) -> Any:
        one = object.__new__(cls)
        made.append(weakref.ref(one))
        return one

    kind.__new__ = new


def is_divided(optimizer: Any) -> bool:
    """True if each rank holds a part of its state alone: ZeRO stage 1."""
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer)


def state_of(one: Any) -> dict[str, Any]:
    """The state of an optimizer, a scheduler or a scaler.

    One that is divided gives its own only after all ranks have gathered it. The optimizer within,
    which holds this rank's part, is packed for itself.
    """
    state = torch.optim.Optimizer.state_dict(one) if is_divided(one) else one.state_dict()
    return cast("dict[str, Any]", state)
