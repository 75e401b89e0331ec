"""A check that an object still lies where it was found when ranks told each other their values.

    feed.windows = cut(rows)        # anew in each epoch

Another rank's values are put into the list that was found under `feed.windows`. Once the script has
put another list there, nobody reads the first one any more: that is noticed here.
"""

import ast
import re
import sys
import threading
from collections import deque
from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import Any

from recoverrun.worker.context.object_views import named_in

SEGMENT = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")
LAST_SEGMENT = re.compile(r"(?:\.(\w+)|\[['\"]?([^\[\]]+?)=?['\"]?\])\Z")
MAIN = "__main__."
VIEWED = type, FunctionType
"""Kinds whose attributes are read by `named_in`."""

NOTHING = object()
"""The outcome of a search along a path: nothing is there any more."""

UNKNOWN = object()
"""The other outcome: it cannot be told, at least without running code of the script."""


@dataclass(frozen=True, slots=True)
class RequestedValues:
    """The values of other ranks that a microbatch may read: their holders must not have moved."""

    variables: Mapping[str, Any]  # those that no context holds
    reads: AbstractSet[str] | None  # names of variables and attributes that a microbatch may read
    written: AbstractSet[str]  # names that it writes before the backward
    gone_over: AbstractSet[str]  # paths that its loop goes over: their items are told with it

    def wants(self, names: tuple[str, ...], place: str) -> bool:
        """True if the microbatch may read a value in the object at `place`, by its `names_of`."""
        root = first_name(place)
        if root not in self.variables and root not in sys.modules:
            return False
        if self.reads is not None and self.reads.isdisjoint(names):
            return False
        path = place.removeprefix(MAIN)
        over = any(re.match(re.escape(one) + r"(?!\w)", path) for one in self.gone_over)
        return not over and self.written.isdisjoint((root, names[-1]))


NOTHING_ASKED = RequestedValues(MappingProxyType({}), frozenset(), frozenset(), frozenset())


def has_moved(path: str, owner: int, names: Mapping[str, Any]) -> bool:
    """True if another object than the one with the identity `owner` is found under `path` now.

    A path begins at one of the variables `names`, or at a module. Ways that are more roundabout
    than attributes and entries are not followed.
    """
    root = first_name(path)
    found = names.get(root, sys.modules.get(root, UNKNOWN))
    rest = path.removeprefix(MAIN)[len(root) :]
    while rest and found is not UNKNOWN and found is not NOTHING:
        segment = SEGMENT.match(rest)
        found = UNKNOWN if segment is None else _part(found, segment[1], segment[2])
        rest = "" if segment is None else rest[segment.end() :]
    return found is not UNKNOWN and owner not in (id(found), id(_attributes(found)))


def first_name(path: str) -> str:
    """The variable at which a path begins."""
    found = re.match(r"\w+", path.removeprefix(MAIN))
    return "" if found is None else found[0]


def names_of(path: str, unnamed: Container[str]) -> tuple[str, ...]:
    """The names of which the script's text has to have one to reach the value at `path`: its own,
    and those of the containers and functions around it (`unnamed`), whose parts can be read without
    a name. The last one is that of a variable or an attribute.
    """
    names, rest = list[str](), path
    while segment := LAST_SEGMENT.search(rest):
        names += [name for name in segment.groups() if name and name.isidentifier()]
        rest = rest[: segment.start()]
        if rest not in unnamed:
            break
    attribute = segment is not None and segment[1] is not None
    return tuple(names) if attribute else (*names, last_name(rest))


def last_name(path: str) -> str:
    """The last variable or attribute of a path, without indices."""
    return re.sub(r"\[[^\[\]]+\]", "", path).rpartition(".")[2]


def _part(found: Any, name: str | None, key: str | None) -> Any:
    if name is not None:
        if type(found) is dict:
            return found.get(name, NOTHING)
        if (held := _attributes(found)) is not None:
            return held.get(name, UNKNOWN)  # a slot, perhaps
        return named_in(found).get(name, UNKNOWN) if isinstance(found, VIEWED) else UNKNOWN
    try:
        at = ast.literal_eval(str(key))
    except (ValueError, SyntaxError):
        return UNKNOWN
    if type(found) is dict:
        return found.get(at, NOTHING)
    if type(found) in (list, tuple, deque) and type(at) is int:
        return found[at] if at < len(found) else NOTHING
    return UNKNOWN


def _attributes(found: Any) -> dict[str, Any] | None:
    """The attributes, without asking the object's class: it may compute some that are not there."""
    if isinstance(found, VIEWED):
        return None
    if isinstance(found, threading.local):  # has a dict for each thread
        return found.__dict__
    try:
        held = object.__getattribute__(found, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None
