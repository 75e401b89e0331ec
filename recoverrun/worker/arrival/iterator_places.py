"""Iterators that variables and attributes of the script hold, as they travel.

One over a loader is known by its number, and by where the script has the loader, should the fresh
process have to make it. Any other is the fresh process's own, and how far it has come is told.
"""

import gc
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import GeneratorType
from typing import Any

from recoverrun.worker.context.iterator_copy import SEQUENCES
from recoverrun.worker.context.object_members import contents, members, resolve
from recoverrun.worker.context.slot_context import Path, owners_of
from recoverrun.worker.data.cycle_source import CycleSource
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.loader_iterator import LoaderIterator

BETWEEN: tuple[type, ...] = (
    GeneratorType, GeneratorSource, enumerate, zip, map, filter, tuple, itertools.islice,
    itertools.chain,
)  # fmt: skip
"""What may lie between a generator and the iterator over a loader below it."""

OVER_OTHERS = (zip, map)
"""Iterators that have come as far as the first one below them."""


_COUNTED = re.compile(r"count\((\d+)\)")


@dataclass(frozen=True, slots=True)
class HeldIterator:
    """One of them."""

    number: int  # of an iterator over a loader; -1 for any other
    loader: Path  # where the script has its loader; () if nowhere
    given: int  # items
    over: int = -1  # the number of the one over a loader below a generator, whose items are counted
    at: int = -1  # the instruction at which the generator waits; -1 if that is not told

    def as_of(self, given: int) -> "HeldIterator":
        """The same, as it had given so many items."""
        return replace(self, given=given, at=-1)

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        return [self.number, list(self.loader), self.given, self.over, self.at]

    @staticmethod
    def unpack(packed: list[Any]) -> "HeldIterator":
        """Raises ValueError if `packed` is not what `pack` makes."""
        number, loader, given, over, at = packed
        return HeldIterator(int(number), tuple(map(str, loader)), int(given), int(over), int(at))


Hold = Callable[[HeldIterator, Any, Mapping[str, Any]], Any]
"""Gives the iterator that a variable is to hold, which holds another one now."""


def held_iterator(
    value: Any, visible: Mapping[str, Any], modules: frozenset[str]
) -> HeldIterator | None:
    """Tell of `value`. None if it is no iterator, or does not know how far it has come.

    Its loader is looked for among `visible` variables, and in objects of the script's own `modules`
    that these lead to.
    """
    given = items_given(value)
    if given is None:
        below = loader_below(value)
        at = value.gi_frame.f_lasti if below is not None else -1
        return None if below is None else HeldIterator(-1, (), below.count, below.number, at)
    if not isinstance(value, LoaderIterator):
        return HeldIterator(-1, (), given)
    return HeldIterator(value.number, _path_of(value.loader, visible, modules), given)


def at_path(path: Path, visible: Mapping[str, Any]) -> Any:
    """The object there; None if there is none."""
    if len(path) < 2:
        return visible.get(path[0]) if path else None
    return members(resolve(visible, path)).get(path[-1])


def _path_of(loader: Any, visible: Mapping[str, Any], modules: frozenset[str]) -> Path:
    for name, value in visible.items():
        if value is loader:
            return (name,)
    for path, owner in owners_of(visible, modules):
        for name, value in contents(owner).items():
            if value is loader:
                return (*path, name)
    return ()


def items_given(value: Any) -> int | None:
    """The number of items that an iterator has given. None if unknown, or at its end."""
    if isinstance(value, LoaderIterator | GeneratorSource | CycleSource):
        return value.count
    if isinstance(value, GeneratorType):
        return _of_generator(value)
    kind = type(value)
    if kind in SEQUENCES:
        state = value.__reduce__()  # from 3.12 on a range says where it goes on, not since when
        return state[2] if len(state) == 3 and type(state[2]) is int else None
    if kind is itertools.count:
        next_one = _COUNTED.fullmatch(repr(value))
        return int(next_one[1]) if next_one else None
    if kind is enumerate:
        return int(value.__reduce__()[1][1])
    if kind in OVER_OTHERS:
        below = value.__reduce__()[1][kind is map :]
        return items_given(below[0]) if below else None
    return None


def source_of(value: Any) -> LoaderIterator | GeneratorSource | CycleSource | None:
    """The source that counts the items of an iterator, if the script's data come from there."""
    if isinstance(value, LoaderIterator | GeneratorSource | CycleSource):
        return value
    below = value.gi_yieldfrom if isinstance(value, GeneratorType) else None
    return below if isinstance(below, GeneratorSource) else loader_below(value)


def loader_below(value: Any) -> LoaderIterator | None:
    """The iterator over a loader from which a generator takes its items, as accelerate's do. None
    if it has not begun, or takes them from several, or from none.
    """
    if type(value) is not GeneratorType or value.gi_frame is None:
        return None
    found: list[LoaderIterator] = []
    inner, seen = [value], {id(value)}
    while inner:
        over, inner = inner, []
        for one in gc.get_referents(*over):
            kind = type(one)
            if id(one) in seen or not (kind is LoaderIterator or kind in BETWEEN):
                continue
            seen.add(id(one))
            (found if kind is LoaderIterator else inner).append(one)
    return found[0] if len(found) == 1 else None


def _of_generator(value: "GeneratorType[Any, Any, Any]") -> int | None:
    """A generator of the script's own function hands on what a source gives."""
    below = value.gi_yieldfrom
    if isinstance(below, GeneratorSource):
        return below.count
    begun = value.gi_suspended or value.gi_running or value.gi_frame is None
    return None if begun else 0
