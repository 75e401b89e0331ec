"""Collectives of the script's that are under way as a step begins.

What such a collective writes to changes after it was copied, and the object that it is waited for
by cannot travel: a process that goes back has neither. There is no snapshot of such a step.
"""

from functools import lru_cache
from typing import Any

import torch.distributed as dist

from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.context.object_graph import Holdings


def under_way(there: Holdings, spaces: Spaces) -> str:
    """The path of one that the script holds; "" if it holds none."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    kinds: set[Any] = {type(value) for _, variables in spaces for value in list(variables.values())}
    kinds |= {type(value) for holder in there.holders for _, value in holder.objects}
    if not any(_is_work(kind) for kind in kinds):  # of thousands of values nearly always
        return ""
    for _, variables in spaces:
        for name, value in list(variables.items()):
            if _is_open(value):
                return name
    for path, _, _, objects in there.holders:
        for name, value in objects:
            if _is_open(value):
                return f"{path}[{name!r}]"
    return ""


def _is_open(value: Any) -> bool:
    kind: Any = type(value)
    return _is_work(kind) and not value.is_completed()


@lru_cache(maxsize=1 << 14)
def _is_work(kind: Any) -> bool:
    """True of the kinds of what collectives return. Asked of each kind."""
    return issubclass(kind, dist.Work)
