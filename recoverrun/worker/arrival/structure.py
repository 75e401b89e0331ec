"""The structure of all that a process holds: which keys a dict has and in which order, how long a
list is, what is an object of which class, which function, a tensor of which shape.

Values come by other ways (`plain_values`, `loose_values`). As the run begins, the structure is
noted. A newcomer is told what is otherwise since: it takes entries away, puts them in another
order, shortens lists, and holds the same functions, and objects that have another name. Then it
looks whether all is as it was told, and does not take part where something is not. So nothing is
lost in silence that no way leads to.

What belongs to one rank is passed over: what the first lines of the newcomer have made otherwise,
or not at all. So are results, which the next step makes anew, data, objects of libraries, and what
hangs on those of frameworks.
"""

import zlib
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from recoverrun.worker.arrival import lost_entries
from recoverrun.worker.arrival.container_contents import SEQUENCES
from recoverrun.worker.arrival.iterator_places import items_given
from recoverrun.worker.arrival.made_places import MadePlaces
from recoverrun.worker.arrival.named_functions import by_code, by_name, lookup
from recoverrun.worker.arrival.plain_values import HOOKS, LONG_CONTAINER, NOT_OURS, OF_MODULES
from recoverrun.worker.arrival.value_kinds import is_value
from recoverrun.worker.arrival.value_marks import is_of_training
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.iterator_copy import SEQUENCES as SEQUENCE_ITERATORS
from recoverrun.worker.context.object_graph import LONG, Holdings, inside
from recoverrun.worker.context.object_members import DICTS, FRAMEWORKS, is_defined_in
from recoverrun.worker.context.object_views import PLAIN, named_in
from recoverrun.worker.context.slot_context import belongs_to_process
from recoverrun.worker.data.batch_substitution import holds_part
from recoverrun.worker.data.numpy_arrays import array_kinds
from recoverrun.worker.data.object_copy import attributes_of
from recoverrun.worker.errors import NotReachable

UNLIKE = "{place} is {here} in this process, and {there} in the others, since they have trained"
NOTHING = "nothing like it"

FUNCTION, ITERATOR, LENGTH, OBJECT, TENSOR = (
    "the function", "an iterator behind item", "of length", "an object of", "an array of",
)  # fmt: skip

HOLDING = " with contents "
"""Between the length of a container and a digest of what it holds."""

COUNTING: tuple[type, ...] = (count, *SEQUENCE_ITERATORS)
CONTAINERS: tuple[Any, ...] = (list, deque, set, *DICTS)

BOOKKEEPING = FRAMEWORKS | {"transformers", "trl"}
"""Packages of frameworks."""

Tag = tuple[str, str, str]
"""A word, what it is, and the path of an object that has another one than this place."""

Keys = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure at one moment."""

    tags: Mapping[Place, Tag] = field(default_factory=dict)
    keys: Mapping[str, Keys] = field(default_factory=dict)


Look = Callable[[], tuple[Holdings, Spaces]]
Bind = Callable[[str, str, Any], None]
"""Gives a variable, by its space and name, a value."""


def seen(
    there: Holdings, spaces: Spaces, own: frozenset[str], data: Container[int] = ()
) -> Structure:
    """The present one, without parts of `data`; `own` are the script's modules."""
    paths, foreign = _paths(there), _of_frameworks(there)
    tags: dict[Place, Tag] = {}
    keys: dict[str, Keys] = {}
    for place, value in _members(there, spaces):
        if _is_under(place[0], foreign):
            continue
        tag = _tag(value, own, data)
        if tag is not None:
            tags.setdefault(place, (*tag, _alias(place, value, paths)))
    for path, one, _, _ in there.holders:
        if _is_passed_over(path) or _is_under(path, foreign):
            continue
        if is_of_training(one) or holds_part(one, data):
            continue
        if type(one) in DICTS and len(one) <= LONG:
            known = tuple(key for key in list(one) if type(key) in (int, str))
            if len(known) == len(one):
                keys.setdefault(path, known)
        elif type(one) in CONTAINERS:
            inside = _within(one, own) if LONG < len(one) <= LONG_CONTAINER else ""
            tags.setdefault((path, None), (LENGTH, f"{len(one)}{inside}", ""))
    return Structure(tags, keys)


def told(now: Structure, before: Structure, there: Holdings, bound: Container[Any]) -> list[Any]:
    """All that is otherwise now, as plain values for msgpack: what dicts have lost, then their
    keys if these have another order, then places with the tags that they had and have. Left out are
    what hangs on variables that loops have `bound`, and which parameters modules have: these take
    them out and in by themselves as they train.
    """
    attributes = {path for path, one, _, _ in there.holders if id(one) in there.owners}
    gone: list[list[Any]] = []
    orders: list[list[Any]] = []
    for path, keys in now.keys.items():
        former = before.keys.get(path, ())
        if former == keys or variable_of((path, None)) in bound or path.endswith(OF_MODULES):
            continue
        lost = lost_entries.lost(former, set(keys))
        gone += [[path, key] for key in lost]
        rest = tuple(key for key in former if key not in set(lost))
        ordered = path in before.keys and keys[: len(rest)] == rest
        if not ordered and path not in attributes:
            orders.append([path, list(keys)])
    tags = [
        [*place, list(before.tags.get(place, ())), list(tag)]
        for place, tag in now.tags.items()
        if before.tags.get(place) != tag and variable_of(place) not in bound
    ]
    return [gone, orders, tags]


def made(
    now: Structure,
    before: Structure,
    held: tuple[Holdings, Spaces],
    *,
    own: frozenset[str],
    data: Container[int],
    bound: Container[Any],
) -> list[Any]:
    """The containers and objects in new places, for `made_places.make`."""

    def is_new(place: Place, value: Any) -> bool:
        tag = now.tags.get(place)
        if tag is None or tag[0] != OBJECT or tag[2] or place in before.tags:
            return False
        return variable_of(place) not in bound

    return MadePlaces(own, data, is_new).told(_members(*held))


def put(said: Sequence[Any], mine: Structure, look: Look, own: frozenset[str], bind: Bind) -> None:
    """Give this process the same; `mine` is what its first lines have left. Raises NotReachable
    where it is not.
    """
    gone, orders, told_tags = said
    there, spaces = look()
    lost_entries.take_away(gone, there)
    holders = {path: one for path, one in reversed(there.held) if path}
    for path, order in orders:
        if type(holders.get(path)) in DICTS:
            arrange(holders[path], order)
    rows = [
        ((path, name), was, tag)
        for path, name, was, tag in told_tags
        if tuple(was[:2]) == mine.tags.get((path, name), ())[:2]  # else it is a rank's own
    ]
    if rows and _differing(rows, there, spaces, own):
        following = _Following(there, spaces, bind)
        for place, _, tag in rows:
            following.bring(place, tag)
    if rows and (odd := _differing(rows, *look(), own)):
        place, here, tag = odd
        raise NotReachable(
            UNLIKE.format(place=_written(place), here=_in_words(here), there=_in_words(tag))
        )


def arrange(one: dict[Any, Any], order: Sequence[Any]) -> None:
    """Have a dict give what it holds in this order of its keys, and then the rest."""
    named = named_in(one)
    present = [(key, named[key]) for key in order if key in named]
    present += [(key, named[key]) for key in list(named) if key not in set(order)]
    for key, value in present:
        del named[key]
        named[key] = value


def _differing(
    rows: Sequence[tuple[Place, Any, Any]], there: Holdings, spaces: Spaces, own: frozenset[str]
) -> tuple[Place, Sequence[str], Sequence[str]] | None:
    """The first place that is here and holds something else. What is not told here may be data."""
    now = seen(there, spaces, own)
    known = {path for path, one in there.held if path} | {space for space, _ in spaces}
    for place, _, tag in rows:
        here = now.tags.get(place, ())
        if place[0] in known and tuple(here) != tuple(tag):
            return place, here, tag
    return None


class _Following:
    """Brings places of this process to what was told of them, where a way leads there."""

    def __init__(self, there: Holdings, spaces: Spaces, bind: Bind) -> None:
        self._holders = {path: one for path, one in reversed(there.held) if path}
        self._variables = dict(spaces)
        members = _members(there, spaces)
        self._at = {path: one for place, one in members for path in _paths_of(place)}
        self._bind = bind

    def bring(self, place: Place, tag: Sequence[str]) -> None:
        path, name = place
        if name is None:
            _shorten(self._holders.get(path), int(tag[1].partition(HOLDING)[0]))
        elif path in self._variables or path in self._holders:
            self._bring(path, name, tag)

    def _bring(self, path: str, name: Any, tag: Sequence[str]) -> None:
        word, what, alias = tag
        is_variable = path in self._variables
        named = self._variables[path] if is_variable else named_in(self._holders[path])
        present: Any = named.get(name)
        if word == ITERATOR and type(present) in COUNTING:
            for _ in range(int(what) - (items_given(present) or 0)):
                next(present, None)
            return
        value = lookup(*what.split(":")) if word == FUNCTION else self._at.get(alias)
        if value is None or value is present:
            return
        if is_variable:
            self._bind(path, name, value)
        else:
            named_in(self._holders[path])[name] = value


def _shorten(one: Any, length: int) -> None:
    """Objects that are left were told by their places."""
    if isinstance(one, SEQUENCES):
        kind: Any = list if isinstance(one, list) else deque
        while kind.__len__(one) > length:
            kind.pop(one)


def _of_frameworks(there: Holdings) -> set[str]:
    """The paths of objects of frameworks: these keep books of their own, and begin some late."""
    return {
        path
        for path, one, _, _ in there.holders
        if _package(there.owners.get(id(one), type(one))) in BOOKKEEPING
    }


def _package(kind: Any) -> str:
    return str(kind.__module__).partition(".")[0]


def _is_under(path: str, paths: set[str]) -> bool:
    """True of one of these paths, and of what lies below it."""
    if not paths:
        return False
    ends = (at for at, letter in enumerate(path) if letter in ".[")
    return path in paths or any(path[:at] in paths for at in ends)


def _members(there: Holdings, spaces: Spaces) -> Iterator[tuple[Place, Any]]:
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if not (name.startswith("__") or belongs_to_process(name)):
                yield (space, name), value
    for path, _, _, objects in there.holders:
        if _is_passed_over(path):
            continue
        for name, value in objects:
            if type(name) is int or (type(name) is str and not _is_private(name)):
                yield (path, name), value


def _is_passed_over(path: str) -> bool:
    return path in NOT_OURS or path.endswith(HOOKS)


def _is_private(name: str) -> bool:
    return name.startswith("__") or belongs_to_process(name)


def _tag(value: Any, own: frozenset[str], data: Container[int]) -> tuple[str, str] | None:
    """None of a value, of a result or a part of `data`, and of what a library has made."""
    tag = _tag_of(value, own)
    if tag is None or tag[0] in (FUNCTION, ITERATOR):
        return tag
    return None if holds_part(value, data) or is_of_training(value) else tag


def _tag_of(value: Any, own: frozenset[str]) -> tuple[str, str] | None:
    """By types alone: a proxy may load what it stands for when it is asked for its class."""
    kind: Any = type(value)
    if kind in PLAIN or is_value(kind):
        return None
    if issubclass(kind, (torch.Tensor, *array_kinds())):
        return TENSOR, f"{value.dtype} {tuple(value.shape)}"
    if kind in COUNTING:
        given = items_given(value)
        return None if given is None else (ITERATOR, str(given))
    if kind in CONTAINERS:
        return OBJECT, kind.__qualname__
    if kind in (FunctionType, BuiltinFunctionType) or issubclass(kind, type):
        name = by_name(value) or (by_code(value) if value.__module__ in own else None)
        return None if name is None else (FUNCTION, ":".join(map(str, name)))
    if issubclass(kind, torch.nn.Module) or is_defined_in(kind, own):
        return OBJECT, f"{kind.__module__}.{kind.__qualname__}"
    return None


def _within(one: Any, own: frozenset[str]) -> str:
    """A digest of the figures and texts in objects of the script's, where a container is too long
    to be looked into: nobody tells of these one by one. Attributes that are None may be a cache.
    """
    held = list(one.values() if isinstance(one, dict) else one)
    kinds = {kind for kind in set(map(type, held)) if is_defined_in(kind, own)}
    if not kinds or type(one) is set:  # which has no order
        return ""
    crc = 0
    for value in held:
        if type(value) in kinds:
            named = sorted((attributes_of(value) or {}).items(), key=itemgetter(0))
            plain = [pair for pair in named if pair[1] is not None and type(pair[1]) in PLAIN]
            crc = zlib.crc32(repr(plain).encode(errors="replace"), crc)
    return f"{HOLDING}{crc:x}"


def _paths(there: Holdings) -> dict[int, str]:
    """The path by which each object was found first, by its id."""
    found = [*there.modules, *((path, one) for path, one in there.held)]
    return {id(one): path for path, one in reversed(found) if path}


def _alias(place: Place, value: Any, paths: Mapping[int, str]) -> str:
    """The path of an object that is found by another one than its place."""
    kind: Any = type(value)
    if kind in (FunctionType, BuiltinFunctionType) or issubclass(kind, torch.Tensor | type):
        return ""
    path = paths.get(id(value)) or paths.get(id(attributes_of(value)), "")
    return "" if path in _paths_of(place) else path


def _paths_of(place: Place) -> tuple[str, ...]:
    """The paths of what this place holds: of a variable as one of a function and of a module."""
    path, name = place
    if not path.startswith("<"):
        return (inside(path, name),)
    return str(name), f"{path[1:-1]}.{name}"


def variable_of(place: Place) -> Any:
    """The variable by which it was found."""
    path, name = place
    return name if path.startswith("<") else path.partition("[")[0].partition(".")[0]


def _written(place: Place) -> str:
    path, name = place
    return path if name is None else str(name) if path.startswith("<") else inside(path, name)


def _in_words(tag: Sequence[str]) -> str:
    if not tag:
        return NOTHING
    word, what, alias = tag
    return f"what is at {alias}" if alias else f"{word} {what}"
