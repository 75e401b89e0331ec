"""Attributes of modules that code changes in place: no attribute is written then.

    self.seen["rows"] += len(x)
    self.mean.mul_(0.9).add_(x.mean())          # a plain tensor, no buffer

The content of lists, dicts, sets and small tensors in the script's own modules is noted as the
first forward begins. What holds something else when it is looked at again is attached state from
then on (`attached_state`).
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ft_collectives.communicators.script_modes import aside
from ft_collectives.communicators.tensor_bits import bits_of
from recoverrun.worker.context.attached_state import (
    ATTACHED,
    CONTAINERS,
    DICTS,
    PLAIN,
    is_light,
    noted,
)
from recoverrun.worker.context.enum_members import is_enum

OFTEN, SELDOM = 32, 64
"""Looks at first, each time; and then one of so many."""

Report = Callable[[Any, str, Any], None]
"""Takes a module, the name of an attribute, and what that held."""


class ChangedInPlace:
    """The attributes that may be changed in place, and what they held when last looked at."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._held: list[tuple[weakref.ref[Any], str, Any]] = []
        self._asked = 0

    @aside
    def watch(self, modules: Iterable[Any], usual: Iterable[str]) -> None:
        """Note what these hold, in attributes other than the `usual` ones of any module."""
        known = frozenset(usual)
        self._held = [
            (weakref.ref(module), name, noted(value))
            for module in modules
            for name, value in vars(module).items()
            if name not in known and not _is_fixed(value) and is_light(value)
        ]

    def before(self, module: Any, name: str, otherwise: Any) -> Any:
        """The content of the attribute as it was looked at last: code that writes it may have
        changed it in place before. `otherwise` if nobody looked at it.
        """
        held = (one for reference, key, one in self._held if key == name and reference() is module)
        return next(held, otherwise)

    @aside
    def look(self) -> None:
        """Report each that has changed; what an attribute was given otherwise has been seen.

        Training that has been as it is for a while is looked at seldom.
        """
        self._asked += 1
        if not self._held or (self._asked > OFTEN and self._asked % SELDOM):
            return
        left = []
        for reference, name, before in self._held:
            module = reference()
            now = vars(module).get(name) if module is not None else None
            if type(now) is not type(before):
                continue
            if _alike(now, before):
                left.append((reference, name, before))
            else:
                self._report(module, name, before)
        self._held = left


def _is_fixed(value: Any) -> bool:
    """True of what nothing changes in place."""
    kind: Any = type(value)
    return kind in PLAIN or is_enum(kind)


def _alike(now: Any, before: Any) -> bool:
    kind: Any = type(now)
    if type(before) is not kind:
        return False
    if kind in CONTAINERS and kind is not set:
        parts = [(now, before)]
        if kind in DICTS:
            parts.append((now.values(), before.values()))
        return len(now) == len(before) and all(
            all(map(_alike, list(one), list(other))) for one, other in parts
        )
    if is_enum(kind):
        return now is before
    if kind in PLAIN or kind is set:
        return bool(now == before or (now != now and before != before))  # a NaN is itself
    alike = now.dtype == before.dtype and now.shape == before.shape
    return bool(alike and torch.equal(bits_of(now.detach()), bits_of(before)))


IN_PLACE = ChangedInPlace(ATTACHED.write)
"""Of this process, as attached state is."""
