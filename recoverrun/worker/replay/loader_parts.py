"""The parts of loaders that are made for a new pass, and of which a lost rank may hold others.

    for epoch in range(3):
        first = (rank + epoch) % world
        for x in DataLoader(rows, collate_fn=lambda numbers: rows[[j + first for j in numbers]]):

Nobody makes the lost rank's. What is alike on all ranks, or differs and rests, is known from the
time when ranks told each other (`rank_constants`, `data_set_shares`). The script's text tells what
may be another rank's and another one in each pass (`moving_shares`): that nobody has told.
"""

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils.data import DataLoader

from recoverrun.worker.analysis.moving_shares import BOTH, MovingShares
from recoverrun.worker.context.values import FIXED, is_numpy
from recoverrun.worker.data.loader_kinds import ALIKE, kinds_of
from recoverrun.worker.data.object_copy import EPOCH_NAMES, attributes_of
from recoverrun.worker.data.samplers import RANK_NAMES
from recoverrun.worker.errors import NotReplayable

UNMET = "{kind} was read after the last proof, and no proof has met one: a lost rank's is unknown"
MOVING = (
    "{part} of a loader may be another one on each rank and in each pass, and a pass has begun "
    "since a rank was lost: that rank's is unknown"
)

DEEPEST, MOST_PARTS, MOST_ENTRIES = 8, 512, 64
"""Levels of a loader, objects in all, and entries of each that are looked into."""

OF_DATA = "torch.utils.data"

CONTAINERS = (partial, MethodType, list, tuple, dict)

DATA = frozenset({deque, dict, frozenset, list, range, set, tuple})


def require_met(
    loader: "DataLoader[Any]", met: Container[str], gives: Callable[[str], bool]
) -> None:
    """Raises NotReplayable if the loader has parts of a kind that no proof has `met`, and that may
    be given what is a rank's own.
    """
    for kind, name in sorted(kinds_of(loader).items()):
        if kind not in met and gives(name):
            raise NotReplayable(UNMET.format(kind=kind))


def moving_part(
    loader: "DataLoader[Any]",
    own: Collection[str],
    labels: MovingShares,
    told: Callable[[Any], bool],
) -> str:
    """The name of a part that may be a rank's own and another one in each pass, as far as nobody
    `told` of it as it is; "" if there is none. `own` are the modules of the script.
    """
    parts = sorted(parts_of(loader, own), key=lambda part: isinstance(part, DataLoader))
    found = (_moving(part, own, labels, told(part)) for part in parts)
    return next((name for name in found if name), "")


def _moving(part: Any, own: Collection[str], labels: MovingShares, told: bool) -> str:
    if isinstance(part, FunctionType):
        code, asked = part.__code__, _read_by([part])
        label = labels.reads(code.co_filename, code.co_firstlineno, part.__name__, asked)
        return part.__qualname__ if label & BOTH else ""
    kinds, name = kinds_in(part, own), type(part).__name__
    if isinstance(part, DataLoader) and all(_is_part(one, own) for one in _read(part)):
        return ""  # these are looked at by themselves
    if not kinds or isinstance(part, DataLoader):
        return name if not told and labels.given(name) & BOTH else ""
    methods = [
        one for kind in type(part).__mro__ for one in vars(kind).values() if kind.__module__ in own
    ]
    if labels.methods(kinds, _read_by(methods)) & BOTH:
        return name
    for one, value in (attributes_of(part) or {}).items():
        known = one in RANK_NAMES or one in EPOCH_NAMES or not _is_data(value)
        if not known and (labels.changed(one) if told else labels.held(kinds, one)) & BOTH:
            return f"{name}.{one}"
    return ""


def _read_by(functions: Iterable[Any]) -> set[str]:
    """The names of variables around these functions that hold data."""
    found, todo = set[str](), [one for one in functions if isinstance(one, FunctionType)]
    for function in todo:
        code = function.__code__
        held = zip(code.co_freevars, _contents(function.__closure__ or ()), strict=False)
        found.update(name for name, value in held if _is_data(value))
        names, inner = set[str](), [code]
        for one in inner:
            names.update(one.co_names)
            inner += [const for const in one.co_consts if isinstance(const, CodeType)]
        space = function.__globals__
        found.update(name for name in names if name in space and _is_data(space[name]))
    return found


def _is_data(value: Any) -> bool:
    """True of plain values, tensors and arrays, and of containers."""
    kind = type(value)
    return kind in FIXED or kind in DATA or isinstance(value, torch.Tensor) or is_numpy(value)


def kinds_in(part: Any, own: Collection[str]) -> list[str]:
    """The classes of the script that it is of."""
    return [one.__name__ for one in type(part).__mro__ if one.__module__ in own]


def parts_of(loader: "DataLoader[Any]", own: Collection[str]) -> Iterator[Any]:
    """The script's functions and objects in a loader, and those that torch makes of data."""
    seen, inner = dict[int, Any](), list[Any]([loader])
    for _ in range(DEEPEST):
        over, inner = inner, []
        for one in over:
            if id(one) in seen or len(seen) == MOST_PARTS:
                continue
            seen[id(one)] = one
            is_part = _is_part(one, own) and not _is_known(one)
            if is_part:
                yield one
            if is_part or isinstance(one, CONTAINERS):
                inner += _held(one)


def _read(loader: "DataLoader[Any]") -> list[Any]:
    """The data that it goes over, and what tells in which order."""
    given = [vars(loader).get("batch_sampler"), vars(loader).get("sampler")]
    return [loader.dataset, *(one for one in given if one is not None)]


def _is_part(one: Any, own: Collection[str]) -> bool:
    module = str((one if isinstance(one, FunctionType) else type(one)).__module__)
    return module in own or isinstance(one, partial) or module.startswith(OF_DATA)


def _held(one: Any) -> list[Any]:
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, FunctionType):
        return [
            *_contents(one.__closure__ or ()),
            *(one.__defaults__ or ()),
            *(one.__kwdefaults__ or {}).values(),
        ]
    if isinstance(one, list | tuple):
        return list(one) if len(one) <= MOST_ENTRIES else []
    held = one if isinstance(one, dict) else attributes_of(one) or {}
    return list(held.values()) if len(held) <= MOST_ENTRIES else []


def _contents(cells: Iterable[CellType]) -> Iterator[Any]:
    """The contents, None where there is nothing yet."""
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


def _is_known(part: Any) -> bool:
    """True of torch's own functions, and of samplers of which another rank's is known otherwise."""
    kind = part if isinstance(part, FunctionType) else type(part)
    if not str(kind.__module__).startswith(OF_DATA):
        return False
    held = attributes_of(part) or {}
    ranked = any(type(held.get(name)) is int for name in RANK_NAMES)
    return kind is part or isinstance(part, ALIKE) or ranked
