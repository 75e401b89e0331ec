"""The values that the rest of an iteration gives to variables, computed as its backward ends.

Nobody runs code as a lost rank between a backward and the next iteration. Where the statements
there only compute variables from others (`tail_slice`), each rank computes these on copies as soon
as its backward has ended, and so does whoever executes a lost microbatch. As the next iteration
begins, whoever follows a lost rank goes by what was computed for it if what this rank had computed
for itself is what there is now (`lost_rank`).
"""

from collections import ChainMap
from collections.abc import Mapping, Set
from typing import Any

import torch

from ft_collectives.communicators.script_modes import aside
from recoverrun.worker.analysis.tail_slice import Tail
from recoverrun.worker.context.object_members import identifier
from recoverrun.worker.context.slot_context import (
    ATTRIBUTE_TENSOR_BYTES,
    CARRIED_TENSOR_BYTES,
    Key,
)
from recoverrun.worker.context.values import copied, is_kept, is_simple, is_small_tensor
from recoverrun.worker.replay.influence import Influence
from recoverrun.worker.tracking.microbatches import Place

ABSENT = object()


class Tails:
    """Executes the slices of the script's loops."""

    def __init__(self, influence: Influence) -> None:
        self._influence = influence

    @aside
    def behind(self, place: Place, names: Mapping[str, Any], unknown: Set[Key]) -> dict[Key, Any]:
        """The values that the rest of the iteration will give to variables; `names` are those that
        the body sees at the end of its backward. None that come of `unknown` ones.
        """
        tail = self._influence.behind(place.top.loop, place.line)
        if tail is None or any(_name_of(key) in tail.reads for key in unknown):
            return {}
        made = _executed(tail, place.top.globals, names)
        found: dict[Key, Any] = {}
        for path, variable in tail.written.items():
            key: Key = path if path[1:] else path[0]
            if _travels(key, made.get(variable, ABSENT)):
                found[key] = made[variable]
        return found


def _executed(tail: Tail, module: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The variables after the slice was executed; none if it cannot be."""
    made: dict[str, Any] = {}
    seen: Any = ChainMap(made, names)  # type: ignore[arg-type]
    try:
        for variable, value in tail.begins.values():
            try:
                began = eval(value, module, seen)
            except (AttributeError, KeyError, NameError):
                continue  # it is written before it is read
            if not _is_told(began, CARRIED_TENSOR_BYTES):
                return {}
            made[variable] = began.detach().clone() if _is_tensor(began) else copied(began)
        with torch.no_grad():
            exec(tail.code, module, seen)
    except Exception:
        # Protects a healthy run: the script itself will meet this error, or comes to no such line.
        return {}
    return made


def _travels(key: Key, value: Any) -> bool:
    most = CARRIED_TENSOR_BYTES if isinstance(key, str) else ATTRIBUTE_TENSOR_BYTES
    return value is not ABSENT and _is_told(value, most)


def _is_told(value: Any, most: int) -> bool:
    kind: Any = type(value)
    return is_kept(kind) and (is_simple(value) or is_small_tensor(value, most))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _name_of(key: Key) -> str:
    return key if isinstance(key, str) else identifier(key)
