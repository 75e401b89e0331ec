"""The place where an object was found, looked at again: it may hold another object by now.

    feed.windows = cut(rows)        # anew in each epoch

A list that was found under `feed.windows` is that no more, and what is put into it nobody reads.
"""

import ast
import re
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

SEGMENT = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")
MAIN = "__main__."
NOTHING = object()
UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Asked:
    """The part of what ranks told each other that has to be where it was found."""

    variables: Mapping[str, Any]  # those that no context holds
    reads: AbstractSet[str]  # names that a microbatch may read, of variables and attributes
    written: AbstractSet[str]  # names that it writes before the backward
    gone_over: AbstractSet[str]  # paths that its loop goes over: their items are told with it

    def wants(self, name: str, place: str) -> bool:
        """True if what is called `name`, in the object that was found under `place`, is of it."""
        root, last = first_name(place), last_name(name)
        if root not in self.variables or last not in self.reads:
            return False
        path = place.removeprefix(MAIN)
        over = any(re.match(re.escape(one) + r"(?!\w)", path) for one in self.gone_over)
        return not over and root not in self.written and last not in self.written


NOTHING_ASKED = Asked(MappingProxyType({}), frozenset(), frozenset(), frozenset())


def has_moved(path: str, owner: int, names: Mapping[str, Any]) -> bool:
    """True if another object than the one with the identity `owner` is found under `path` now.

    A path begins at one of the variables `names`. Ways that are more roundabout than attributes and
    entries are not followed.
    """
    root = first_name(path)
    found, rest = names.get(root, UNKNOWN), path.removeprefix(MAIN)[len(root) :]
    while rest and found is not UNKNOWN and found is not NOTHING:
        segment = SEGMENT.match(rest)
        found = UNKNOWN if segment is None else _part(found, segment[1], segment[2])
        rest = "" if segment is None else rest[segment.end() :]
    return found is not UNKNOWN and owner not in (id(found), id(_attributes(found)))


def first_name(path: str) -> str:
    """The variable at which a path begins."""
    found = re.match(r"\w+", path.removeprefix(MAIN))
    return "" if found is None else found[0]


def last_name(path: str) -> str:
    """The last name on the way that stands in the script's text."""
    return re.sub(r"\[[^\[\]]+\]", "", path).rpartition(".")[2]


def _part(found: Any, name: str | None, key: str | None) -> Any:
    if name is not None:
        if type(found) is dict:
            return found.get(name, NOTHING)
        return (_attributes(found) or {}).get(name, UNKNOWN)  # a closure's variable, perhaps
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
    """Without asking the object's class, which may make up what is not there."""
    try:
        held = object.__getattribute__(found, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None
