"""Things of the script's that give something else each time they are asked, and how far each has
come: Python's own iterators, generators, open files, queues.

Objects, containers and functions may hold them, and a schedule that asks `itertools.count` for its
next number has a state that no variable shows. Each is known by the path on which it was found and
by a mark, which is other once it has moved. In a process that goes back it is moved as far as it
had come. What cannot be moved so (what another thread or process has put in, a generator that began
unseen) rules snapshots out as soon as it has moved. Iterators over loaders tell of themselves, and
what a loop on the way goes over is moved as that loop is wound.
"""

import gc
import io
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, GeneratorType
from typing import Any

from recoverrun.worker.arrival.iterator_places import HeldIterator, held_iterator, items_given
from recoverrun.worker.arrival.packing import Plain
from recoverrun.worker.context.iterator_copy import BUILT_IN, iterator_digest
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.values import is_simple
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots.queue_takes import QUEUES
from recoverrun.worker.tracking.microbatches import LoopFrame

MOVED = "how far {}, {}, has come is unknown"
GONE = "{}, which has moved since the run began, is not there"
ENDLESS = "{} does not come to where it was within {:g} s"

STEPS_S = 5.0
MOST_ITEMS = 1 << 10
"""Of a sequence below an iterator that is moved item by item, with a look at it after each."""

MOST_TEXT = 1 << 20
"""Characters or bytes of a file in memory: a larger one is data."""

STEPPED = (
    itertools.count, itertools.cycle, itertools.repeat, itertools.chain, itertools.islice,
    enumerate, zip,
)  # fmt: skip
"""Iterators that do nothing but give on what those below them give."""

Key = tuple[str, int]
"""A path, and how many of that path were found before."""

Mark = tuple[Any, ...]

UNKNOWN: Mark = ("unknown",)
"""Nobody can tell whether such a thing has moved."""


def found(there: Holdings) -> dict[Key, Any]:
    """All of them that have a name."""
    seen: Counter[str] = Counter()
    named: dict[Key, Any] = {}
    for path, one in (*there.iterators, *there.sources):
        if path and not isinstance(one, LoaderIterator):
            named[path, seen[path]] = one
            seen[path] += 1
    return named


def marks(there: Holdings) -> dict[Key, Mark]:
    return {key: mark_of(one) for key, one in found(there).items()}


def mark_of(source: Any) -> Mark:
    """Tells how far `source` has come; `UNKNOWN` if nothing does."""
    if isinstance(source, io.IOBase):
        return _mark_of_file(source)
    if isinstance(source, QUEUES.kinds):
        return (QUEUES.taken_from(source),)
    if type(source) is GeneratorType:
        return _mark_of_generator(source)
    given = items_given(source)
    if given is not None:
        return (given,)
    if type(source).__module__ in BUILT_IN:
        return (iterator_digest(source),)
    return UNKNOWN


def told(
    there: Holdings,
    before: Mapping[Key, Mark],
    stack: Sequence[LoopFrame],
    frames: Iterable[FrameType],
    own: frozenset[str],
) -> list[list[Plain]]:
    """Plain values for msgpack: those that have moved since `before`, and how far they have come.

    Left out are what loops of `stack` go over, variables that these give another value before they
    read them, and what is told of variables of `frames` anyway (`rank_image`). Raises NotReachable
    if it cannot be told of one.
    """
    wound = _below([one.over for one in stack])
    for frame in frames:
        wound.update(id(one) for one in frame.f_locals.values() if _is_held(one, own))
    bound = {name for one in stack for name in one.loop.assigned | one.loop.targets}
    dead = bound - {name for one in stack for name in one.loop.live_in}
    sources = found(there)
    for one in sources.values():
        wound |= _below([one]) - {id(one)}  # they move with it
    said = []
    for key, source in sources.items():
        mark = mark_of(source)
        if id(source) in wound or key[0] in dead or _has_rested(before.get(key), mark):
            continue
        way = _way_to(source, mark, own)
        if way is None or key not in before:
            kind = type(source).__name__
            raise NotReachable(MOVED.format(key[0], f"{_article(kind)} {kind}"))
        said.append([*key, *way])
    return said


def put(
    told_ones: Iterable[Sequence[Any]],
    there: Holdings,
    hold: Callable[[HeldIterator, Any, Mapping[str, Any]], Any],
) -> None:
    """Move those of this process as far. Raises NotReachable."""
    here = found(there)
    for path, number, way, value in told_ones:
        source = here.get((path, number))
        if source is None:
            raise NotReachable(GONE.format(path))
        if way == "held":
            hold(HeldIterator.unpack(value), source, {})
        elif way == "closed":
            source.close()
        elif way == "text":
            source.seek(0)
            source.truncate()
            source.write(value[0])
            source.seek(value[1])
        elif way == "file":
            source.seek(value)
        else:
            _step(path, source, value)


def _is_held(value: Any, own: frozenset[str]) -> bool:
    return not isinstance(value, LoaderIterator) and held_iterator(value, {}, own) is not None


def _has_rested(before: Mark | None, now: Mark) -> bool:
    if now == UNKNOWN:
        return False
    return now == before or (before is None and now[0] == "closed")


def _way_to(source: Any, mark: Mark, own: frozenset[str]) -> list[Plain] | None:
    """The way in which another one like it is brought to the same place; None if there is none."""
    if mark == UNKNOWN or isinstance(source, QUEUES.kinds):
        return None
    if mark[0] == "closed":
        return ["closed", None]
    if isinstance(source, io.StringIO | io.BytesIO):
        text = source.getvalue()
        return ["text", [text, source.tell()]] if len(text) <= MOST_TEXT else None
    if isinstance(source, io.IOBase):
        return None if source.writable() else ["file", mark[0]]
    held = held_iterator(source, {}, own)
    if held is not None:
        return ["held", held.pack()]
    return ["stepped", mark[0]] if _is_stepped(source) else None


def _mark_of_file(file: Any) -> Mark:
    """A file that is written to alone is a log: its lines are written again."""
    if file.closed or not file.readable():
        return ("closed",)
    if not file.seekable():
        return UNKNOWN
    try:
        return (file.tell(),)
    except OSError:  # a loop has read lines of it, and others are read ahead
        return UNKNOWN


def _mark_of_generator(source: "GeneratorType[Any, Any, Any]") -> Mark:
    frame = source.gi_frame
    if frame is None:
        return ("closed",)
    if not source.gi_suspended:
        return (frame.f_lasti,)
    held = [(name, _of_variable(value)) for name, value in sorted(frame.f_locals.items())]
    below = source.gi_yieldfrom
    return frame.f_lasti, *held, id(below) if below is None else _of_variable(below)


def _of_variable(value: Any) -> Any:
    if is_simple(value):
        return value
    if type(value) is GeneratorType:
        return _mark_of_generator(value)
    moves = hasattr(type(value), "__next__") and type(value).__module__ in BUILT_IN
    return iterator_digest(value) if moves else id(value)


def _is_stepped(source: Any) -> bool:
    """True if asking it for items does nothing else, and a look at it is quick."""
    kind = type(source)
    if is_simple(source) or kind is range:
        return True
    if kind in (list, tuple):
        return len(source) <= MOST_ITEMS and all(map(_is_stepped, source))
    if kind.__module__ not in BUILT_IN or not hasattr(kind, "__next__"):
        return False
    if kind not in STEPPED and items_given(source) is None:
        return False
    try:
        _, *parts = source.__reduce__()
    except TypeError:  # as for itertools in Python 3.14
        return False
    return all(_is_stepped(one) for one in parts if one is not None)


def _step(path: str, source: Iterator[Any], digest: int) -> None:
    until = time.monotonic() + STEPS_S
    while iterator_digest(source) != digest:
        if time.monotonic() > until:
            raise NotReachable(ENDLESS.format(path, STEPS_S))
        next(source, None)


def _below(over: Sequence[Any]) -> set[int]:
    """The identities of what loops go over, and of the iterators that these take items from."""
    todo, seen = [one for one in over if one is not None], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if _may_move(one):
            todo += [part for part in gc.get_referents(one) if _may_move(part)]
    return seen


def _may_move(one: Any) -> bool:
    return hasattr(type(one), "__next__") or type(one) is tuple


def _article(kind: str) -> str:
    return "an" if kind[:1].lower() in "aeiou" else "a"
