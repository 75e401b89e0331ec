"""Objects of libraries that an attribute, an entry or a variable is given while the script trains:
another loss function, a writer, a lock.

What they hold is not looked at as the script's own objects are. One whose kind leaves pickling to
Python is its class and its attributes: where these are plain values it is made anew with them, and
no code of the class runs. Of all others only the kind is told, and a process that goes back says
which of them it has not, once everything else is in its place: its own first lines, an iterator or
code between two loops may have made one of the same kind.
"""

from collections.abc import Sequence
from typing import Any

import torch

from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain
from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_members import slots_of
from recoverrun.worker.context.object_views import named_in

OF_LIBRARY, ONLY_TOLD = "library", "kind"
"""The word of a token, and the way of one that is not made."""

NOT_BACK = "objects of libraries that the script made as it trained are not there again: {}"

SHOWN = 3


def token(kind: Any) -> tuple[Any, ...]:
    """The token of an object of this kind."""
    return OF_LIBRARY, kind.__module__, kind.__qualname__


def way(value: Any) -> list[Plain]:
    """The way in which another process comes to the same, or what is missing there."""
    kind: Any = type(value)
    names: list[Plain] = [kind.__module__, kind.__qualname__]
    if not (is_makeable(kind) and _is_its_attributes(kind)):
        return [ONLY_TOLD, names]
    packing = Packing([])
    try:
        told: list[Plain] = [[name, packing.pack(one, name)] for name, one in vars(value).items()]
    except CannotTravel:
        return [ONLY_TOLD, names]
    return [ONLY_TOLD, names] if packing.tensors else ["made", [*names, told]]


def is_makeable(kind: Any) -> bool:
    """True of a kind whose objects are their attributes, in a dict."""
    plain = getattr(kind, "__new__", None) is object.__new__
    return plain and not slots_of(kind) and bool(kind.__dictoffset__)


def _is_its_attributes(kind: Any) -> bool:
    states = object.__getstate__, torch.nn.Module.__getstate__  # that leaves out compiled code
    ways = kind.__reduce_ex__, kind.__reduce__
    return ways == (object.__reduce_ex__, object.__reduce__) and kind.__getstate__ in states


def lacking(told: Sequence[Sequence[Any]], there: Holdings, spaces: Spaces) -> list[str]:
    """The objects that a process which went back has not, each by its place and its kind. `told` is
    what `References` has.
    """
    holders = {path: one for path, one in reversed(there.held) if path}
    variables = dict(spaces)
    return [
        f"{name if path.startswith('<') else f'{path}[{name!r}]'} ({'.'.join(names)})"
        for path, name, how, names in told
        if how == ONLY_TOLD
        and list(token(type(at(variables.get(path), holders.get(path), name)))[1:]) != names
    ]


def at(variables: Any, holder: Any, name: Any) -> Any:
    """The value of this name among variables, or in a holder; None if there is none."""
    held = variables if variables is not None else holder
    if held is None:
        return None
    try:
        return (held if variables is not None else named_in(held))[name]
    except (LookupError, TypeError):
        return None


def in_words(found: Sequence[str]) -> str:
    more = [f"{len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return NOT_BACK.format(", ".join([*found[:SHOWN], *more]))
