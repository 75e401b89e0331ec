"""The extent of the script's training loops: which of its own steps is the present one, and how
many there will be, as far as that can be seen without asking the script anything.

All loops around a microbatch are counted through: epochs times batches times microbatches. A loop
over a range knows both its place and its end, and so does `while step < limit`; one over what has a
length knows its end. A Trainer of a framework counts its steps itself. Where one length is not
known nothing is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, length_hint
from typing import Any

from recoverrun.worker.tracking.microbatches import LoopFrame, Microbatch, Top

COUNTERS = (
    ("state.global_step", "state.max_steps"),  # of transformers' Trainer
    ("trainer.global_step", "trainer.max_steps"),  # of Lightning's loops
)
"""Steps that are over, and steps in all: attributes of the `self` around a training loop."""


SIZED = frozenset({"builtins", "collections", "torch", "torchdata", "accelerate", "lightning"})
"""Packages whose containers and loaders are asked for their length."""

DEEPEST = 3
"""Levels of samplers of samplers that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """`step`: the script's own number of the present step, from 0. `steps`: how many there will be,
    this one and those before it in this process included. -1: it cannot be seen.
    """

    step: int = -1
    steps: int = -1


UNSEEN = Extent()


@dataclass(frozen=True, slots=True)
class _Count:
    """A loop: at which of its items it is, of how many, and whether the items say so themselves."""

    place: int
    length: int  # -1 unknown
    own: bool


def extent(microbatches: Sequence[Microbatch], stack: Iterable[LoopFrame]) -> Extent:
    """The extent of the loops around the first step's microbatches, within that step."""
    if not microbatches:
        return UNSEEN
    first = microbatches[0].places
    for around in first:
        if (counted := _counter(around.top.names)) is not None:
            return counted
    over = {loop_frame.loop.id: loop_frame.over for loop_frame in stack}
    counts = [_count(one.top, over.get(one.top.loop.id)) for one in reversed(first)]
    inner = counts[1:]
    if any(count.length < 0 for count in inner):
        return UNSEEN
    # So many times the innermost loop goes around for one step.
    turns = len({tuple(one.top.iteration for one in mb.places) for mb in microbatches})
    place = reduce(lambda at, count: at * count.length + count.place, inner, counts[0].place)
    whole = reduce(lambda length, count: length * count.length, inner, counts[0].length)
    return Extent(
        step=place // turns if counts[0].own else -1,
        steps=max(1, whole // turns - place // turns) if counts[0].length >= 0 else -1,
    )


def _counter(names: Mapping[str, Any]) -> Extent | None:
    """The extent by the object whose method the loop is in."""
    for done, whole in COUNTERS:
        try:
            counted = tuple(attrgetter(path)(names["self"]) for path in (done, whole))
        except (AttributeError, KeyError):
            continue
        match counted:
            case int(step), int(most) if 0 <= step < most:
                return Extent(step=step, steps=most - step)
    return None


def _count(top: Top, iterable: Any) -> _Count:
    if top.loop.counts is not None:
        names = {**top.globals, **top.names}
        match tuple(_value(words, names) for words in top.loop.counts):
            case int(place), int(length) if 0 <= place < length:
                return _Count(place, length, own=True)
        return _Count(top.iteration, -1, own=False)
    over = getattr(iterable, "iterable", iterable)  # a bar of tqdm shows what it goes over
    if isinstance(over, range) and over.step > 0 <= over.start and isinstance(top.item, int):
        return _Count(top.item // over.step, -(-over.stop // over.step), own=True)
    return _Count(top.iteration, min(_lengths(iterable, top.iteration + 1), default=-1), own=False)


def _value(words: str, names: Mapping[str, Any]) -> Any:
    """The present value of a number, a name or attributes of one; None if there is none."""
    first, _, rest = words.partition(".")
    if first.isdigit():
        return int(first)
    try:
        return attrgetter(rest)(names[first]) if rest else names[first]
    except (AttributeError, KeyError):
        return None


def _lengths(iterable: Any, gone: int) -> Iterator[int]:
    """The lengths of what a loop goes over, of which so many items are gone; -1 unknown."""
    if type(iterable) in (enumerate, zip):
        inner = iterable.__reduce__()[1]
        for part in inner[:1] if type(iterable) is enumerate else inner:
            yield from _lengths(part, gone)
        return
    if _has_length(iterable):
        yield len(iterable)
    else:
        left = _hint(iterable)
        yield left + gone if left >= 0 else -1


def _has_length(iterable: Any) -> bool:
    """True if asking for its length runs nothing of the script that loops do not run themselves."""
    if getattr(iterable, "_dataset_kind", 0) != 0:
        return False  # A loader over an IterableDataset remembers that it was asked, and warns.
    methods = [getattr(type(one), "__len__", None) for one in (iterable, *_samplers(iterable))]
    return all(method is not None and _package(method) in SIZED for method in methods)


def _samplers(owner: Any, depth: int = DEEPEST) -> Iterator[Any]:
    """The samplers of a loader and those below them. Their truth is not asked: that is a length."""
    held = getattr(owner, "__dict__", {})
    for one in (held.get(name) for name in ("batch_sampler", "sampler")):
        if one is not None and depth:
            yield one
            yield from _samplers(one, depth - 1)


def _package(method: Any) -> str:
    return (getattr(method, "__module__", None) or "builtins").partition(".")[0]


def _hint(iterator: Any) -> int:
    """The number of items that an iterator of Python's own has left, -1 unknown."""
    plain = type(iterator).__module__ == "builtins"
    return length_hint(iterator, -1) if plain else -1
