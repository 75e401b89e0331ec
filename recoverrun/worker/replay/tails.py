"""The values that the rest of an iteration gives to variables, computed as its backward ends.

Between a backward and the next iteration nobody runs code as a lost rank. But some statements there
only compute variables from others (`tail_slice`). Each rank executes these on copies as soon as its
backward has ended, and a survivor that executes a lost microbatch does so for the lost rank, too.
As the next iteration begins, a survivor compares its own variables with what it had computed for
itself. If they agree, it takes the lost rank's to be what it had computed for that (`lost_rank`).
"""

import ast
import copy
from collections import ChainMap, deque
from collections.abc import Mapping, Set
from types import ModuleType
from typing import Any

import torch

from ft_collectives.communicators.script_modes import aside
from recoverrun.worker.analysis.pure_statements import Path
from recoverrun.worker.analysis.tail_slice import TailSlice
from recoverrun.worker.context.member_views import attributes
from recoverrun.worker.context.object_members import DICTS, identifier
from recoverrun.worker.context.slot_context import ATTRIBUTE_TENSOR_BYTES, CARRIED_TENSOR_BYTES, Key
from recoverrun.worker.context.values import is_kept, is_simple, is_small_tensor
from recoverrun.worker.replay.influence import Influence
from recoverrun.worker.tracking.microbatches import MicrobatchPlace

ABSENT = object()

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
OF_TENSORS = frozenset({"T", "data", "device", "dtype", "grad", "ndim", "shape"})
CONTAINERS = frozenset({deque, list, set, tuple, torch.Size})
PACKAGES = frozenset({"math", "numpy", "torch"})
FEW = 256
DEPTH = 3


class Tails:
    """Executes the slices of the script's loops."""

    def __init__(self, influence: Influence) -> None:
        self._influence = influence

    @aside
    def behind(
        self, place: MicrobatchPlace, names: Mapping[str, Any], unknown: Set[Key]
    ) -> dict[Key, Any]:
        """The values that the rest of the iteration will give to variables. `names` are what the
        body sees at the end of its backward. Empty if the slice reads one of the `unknown` values.
        """
        tail = self._influence.behind(place.top.loop, place.line)
        if tail is None or any(_name_of(key) in tail.reads for key in unknown):
            return {}
        made = _executed(tail, place.top.globals, names)
        found: dict[Key, Any] = {}
        for path, variable in tail.written.items():
            key: Key = path if path[1:] else path[0]
            if _travels(key, made.get(variable, ABSENT)):
                found[key] = _copy(made[variable])
        return found


def _executed(tail: TailSlice, module: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The variables as the slice leaves them; empty if it cannot be executed."""
    made: dict[str, Any] = {}
    there = {**module, **names}
    if not _is_harmless(tail, there):
        return {}
    for path, variable in tail.begins.items():
        began = _at(path, there)
        if began is ABSENT:
            continue  # it is written before it is read
        if not _is_told(began, CARRIED_TENSOR_BYTES):
            return {}
        made[variable] = _copy(began)
    seen: Any = ChainMap(made, names)  # type: ignore[arg-type]
    try:
        with torch.no_grad():
            exec(tail.code, module, seen)
    except Exception:
        # Protects a healthy run: the script itself will meet this error, or comes to no such line.
        return {}
    return made


def _is_harmless(tail: TailSlice, names: Mapping[str, Any]) -> bool:
    """True if the slice runs no code of the script: all that it reads are plain values, none of
    which a property computes.
    """
    if not tail.calls.isdisjoint(names):
        return False
    given = (_at(path, names) for path in tail.given)
    begun = (_at(path, names) for path in tail.begins)
    return all(map(_is_plain, given)) and all(one is ABSENT or _is_plain(one) for one in begun)


def _at(path: Path, names: Mapping[str, Any]) -> Any:
    """The value at a path, read without running code of its class; else `ABSENT`."""
    value = names.get(path[0], ABSENT)
    for name in path[1:]:
        value = _part(value, name)
    return value


def _part(owner: Any, name: str) -> Any:
    kind: Any = type(owner)
    if name.startswith("["):
        return dict.get(owner, ast.literal_eval(name[1:-1]), ABSENT) if kind in DICTS else ABSENT
    if kind in TENSORS:
        return getattr(owner, name) if name in OF_TENSORS else ABSENT
    of_class = next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), ABSENT)
    if hasattr(of_class, "__get__"):
        return ABSENT  # a property, or a method
    return attributes(owner).get(name, of_class)


def _is_plain(value: Any, depth: int = DEPTH) -> bool:
    """True of a value whose methods and operators are torch's, numpy's or Python's own."""
    kind: Any = type(value)
    if kind in PLAIN or kind in TENSORS:
        return True
    if kind is ModuleType:
        return value.__name__.partition(".")[0] in PACKAGES
    if kind in CONTAINERS or kind in DICTS:
        parts = [*value, *value.values()] if kind in DICTS else list(value)
        return depth > 0 and len(parts) <= FEW and all(_is_plain(one, depth - 1) for one in parts)
    return bool(kind.__module__ == "numpy")


def _travels(key: Key, value: Any) -> bool:
    most = CARRIED_TENSOR_BYTES if isinstance(key, str) else ATTRIBUTE_TENSOR_BYTES
    return value is not ABSENT and _is_told(value, most)


def _is_told(value: Any, most: int) -> bool:
    kind: Any = type(value)
    return is_kept(kind) and (is_simple(value) or is_small_tensor(value, most))


def _copy(value: Any) -> Any:
    """A copy that shares nothing with what the script changes in place."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _name_of(key: Key) -> str:
    return key if isinstance(key, str) else identifier(key)
