"""Collectives of the script's that are under way as a step begins.

What such a collective writes to changes after it was copied, and the object that it is waited for
by cannot travel: a process that goes back has neither. There is no snapshot of such a step.
"""

from typing import Any

import torch.distributed as dist

from recoverrun.worker.arrival.loose_values import Spaces
from recoverrun.worker.context.object_graph import LONG, Holdings
from recoverrun.worker.context.object_views import is_view, named_in


def under_way(there: Holdings, spaces: Spaces) -> str:
    """The path of one that the script holds; "" if it holds none."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    for _, variables in spaces:
        for name, value in list(variables.items()):
            if _is_open(value):
                return name
    for path, holder in there.held:
        named = named_in(holder) if path and is_view(holder) else {}
        if len(named) > LONG:
            continue
        for name in list(named):
            if _is_open(named.get(name)):
                return f"{path}[{name!r}]"
    return ""


def _is_open(value: Any) -> bool:
    return isinstance(value, dist.Work) and not value.is_completed()
