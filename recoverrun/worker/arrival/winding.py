"""Into the middle of the loops: a fresh process goes where a survivor stands.

The script runs from its first line. Loops that are on the survivor's stack are wound forward as
they begin, the outermost first: a `range` begins at the survivor's item, other iterables are passed
item by item, and of a loader's iterator items are only counted. A `while` is entered. Code between
two of these loops runs once, in the iteration in which the survivor is. At the top of the innermost
one everything is put in place (`Arrives.arrived`), and from there on the script runs by itself.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from recoverrun.worker.arrival.frame_variables import refresh
from recoverrun.worker.arrival.slot_sources import SlotSources
from recoverrun.worker.arrival.source_places import OriginOf, SourcePlace, told_sources
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

HELD = (list, tuple, dict, str, set, frozenset, bytes)
"""Kinds whose items are there: to pass one costs nothing, and does nothing."""

TRAINED = "the loop at {loop}, which has trained, has ended before the one that trains now"
NO_LOOP = "no loop of the script is under way"
ELSEWHERE = "this process comes to the loop at {here} where others train in the one at {there}"
NO_ITEM = "the loop at {loop} goes over {range}, without {item}, at which the others are"
ENDED = "the loop at {loop} ended after {passed} of {count} items, which the others have passed"
MISSED = (
    "this process did not come to the loop at {inner} in iteration {iteration} of the one at "
    "{outer}, as the others did"
)


@dataclass(frozen=True, slots=True)
class LoopPlace:
    """One loop of the stack, at its present iteration."""

    loop_id: str
    iteration: int
    item: int | None  # of a range
    opened: int  # iterators of loaders that the process had made when this iteration began


@dataclass(frozen=True, slots=True)
class Standing:
    """The position of a survivor: at the top of the last one of `loops`, the outermost first."""

    loops: tuple[LoopPlace, ...]
    sources: tuple[SourcePlace, ...]
    opened: int  # iterators of loaders that the process has made
    own_data: bool = False  # a slot's order of data is whatever it is in its process

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        loops = [[one.loop_id, one.iteration, one.item, one.opened] for one in self.loops]
        return [loops, [one.pack() for one in self.sources], self.opened, self.own_data]

    @staticmethod
    def unpack(packed: list[Any]) -> "Standing":
        """Raises ValueError if `packed` is not what `pack` makes."""
        loops, sources, opened, own_data = packed
        return Standing(
            loops=tuple(_place(*one) for one in loops),
            sources=tuple(SourcePlace.unpack(one) for one in sources),
            opened=int(opened),
            own_data=bool(own_data),
        )


def _place(loop_id: Any, iteration: Any, item: Any, opened: Any) -> LoopPlace:
    return LoopPlace(str(loop_id), int(iteration), None if item is None else int(item), int(opened))


class Arrives(Protocol):
    """The interface that puts in place what a fresh process needs, as it comes there."""

    def before(self, loop_id: str) -> Standing:
        """The outermost loop is about to begin: wait for a place, and return it."""

    def restore(self, index: int) -> None:
        """In loop `index` this is where `LoopFrame.streams` of its present iteration were read:
        right before the header of a `for`, at the top of a `while`. Put the slot's streams of that
        moment in place; not once more at the top, as the header may draw. Generators that the
        script keeps are told as of the top, and are for `arrived`.
        """

    def finds(self, loop_frame: LoopFrame) -> None:
        """Items of this loop are about to be passed: code of the script's may give them."""

    def passes(self, index: int, loop_frame: LoopFrame, local: dict[str, Any]) -> None:
        """The body of loop `index`, which is not the innermost, begins. It runs only once."""

    def arrived(
        self, loop_frame: LoopFrame, local: dict[str, Any], global_: dict[str, Any]
    ) -> None:
        """The top of the innermost loop is reached: put variables and all else in place.
        `Winding.sources.hold` gives the iterators that they are to hold.
        """


def standing(
    runtime: ScriptRuntime,
    origin_of: OriginOf = lambda one: one.origin,
    *,
    own_data: bool = False,
) -> Standing:
    """Tell where this process stands, at the top of the innermost loop that is under way.
    `own_data`: the order of data is not that of the slot, but the fresh process's own.

    Raises NotReachable if a fresh process cannot come there.
    """
    reason = unreachable(runtime)
    if reason:
        raise NotReachable(reason)
    stack = runtime.stack
    loops = [
        LoopPlace(
            one.loop.id, one.iteration, one.item if type(one.item) is int else None, one.opened
        )
        for one in stack
    ]
    sources = told_sources(runtime.sources, stack[-1], origin_of)
    return Standing(tuple(loops), tuple(sources), runtime.opened, own_data)


def unreachable(runtime: ScriptRuntime) -> str:
    """The reason why a fresh process cannot come to where this one stands, as far as its loops say;
    or "".
    """
    if not runtime.stack:
        return NO_LOOP
    trained = runtime.loop_stack.trained_before()
    return TRAINED.format(loop=trained) if trained else ""


def over_for_good(runtime: ScriptRuntime) -> str:
    """The reason why a fresh process can come to none of the later places, or ""."""
    ended = runtime.loop_stack.trained.items()
    loops = [loop for number, loop in ended if number != runtime.stack[0].number]
    return TRAINED.format(loop=loops[0]) if loops else ""


class Winding:
    """The winding of a fresh process, until it has arrived. Implements `tracking.winds.Winds`."""

    def __init__(self, runtime: ScriptRuntime, outermost: str, arrives: Arrives) -> None:
        """`outermost` is the id of the loop before which a place is waited for."""
        self._runtime = runtime
        self._outermost = outermost
        self._arrives = arrives
        self._standing: Standing | None = None
        self._frames: list[LoopFrame] = []  # of the loops of the path that have begun
        self.sources = SlotSources(runtime)

    # --------------------------------------------------------------------------- Winds

    def before(self, loop_id: str) -> None:
        if self._standing is not None or loop_id != self._outermost:
            return
        told = self._arrives.before(loop_id)
        if told.loops[0].loop_id != loop_id:
            raise NotReachable(ELSEWHERE.format(here=loop_id, there=told.loops[0].loop_id))
        self._standing = told
        self.sources.take(told.sources, own_data=told.own_data)

    def begins(
        self, loop_frame: LoopFrame, iterable: Iterable[Any], items: Iterator[Any]
    ) -> Iterator[Any]:
        index = self._begun(loop_frame)
        if index is None:
            return items
        place = self._loops[index]
        if type(iterable) is range:
            items = _sliced(iterable, place)
        else:
            self._arrives.finds(loop_frame)
            self._pass(iterable, items, place)
        self._runtime.opened = place.opened
        if self._is_last(index):
            self.sources.settle()
        self._arrives.restore(index)
        return items

    def enters(self, loop_frame: LoopFrame) -> None:
        index = self._begun(loop_frame)
        if index is not None and self._is_last(index):
            self.sources.settle()

    def top(self, loop_frame: LoopFrame, local: dict[str, Any], global_: dict[str, Any]) -> None:
        index = next((n for n, one in enumerate(self._frames) if one is loop_frame), None)
        if index is None:
            return
        place = self._loops[index]
        if loop_frame.iteration != place.iteration:
            raise NotReachable(
                MISSED.format(
                    inner=self._loops[index + 1].loop_id,
                    iteration=place.iteration,
                    outer=place.loop_id,
                )
            )
        if loop_frame.loop.kind != "for":
            self._runtime.opened = place.opened
            self._arrives.restore(index)
            if loop_frame.streams is not None:
                loop_frame.streams = read_streams()
        if not self._is_last(index):
            self._arrives.passes(index, loop_frame, local)
            refresh(local, self._runtime.stack, sys._getframe(1))
            return
        self._arrives.arrived(loop_frame, local, global_)
        refresh(local, self._runtime.stack, sys._getframe(1))
        self._end()

    def opens(self, number: int) -> Callable[[LoaderIterator], Iterator[Any]] | None:
        return self.sources.opens(number)

    # --------------------------------------------------------------------------- on the way

    @property
    def _loops(self) -> Sequence[LoopPlace]:
        return () if self._standing is None else self._standing.loops

    def _begun(self, loop_frame: LoopFrame) -> int | None:
        """The place in the path of a loop that has just begun; None if it is not on it."""
        index = len(self._frames)
        if index == len(self._loops) or self._loops[index].loop_id != loop_frame.loop.id:
            return None
        loop_frame.iteration = self._loops[index].iteration - 1
        self._frames.append(loop_frame)
        return index

    def _pass(self, iterable: Iterable[Any], items: Iterator[Any], place: LoopPlace) -> None:
        """Let `items` give what the others' have given before the present iteration."""
        count = place.iteration
        if type(iterable) not in HELD:
            self.sources.pass_items(items, count)
            return
        passed = sum(1 for _ in islice(items, count))
        if passed < count:
            raise NotReachable(ENDED.format(loop=place.loop_id, passed=passed, count=count))

    def _is_last(self, index: int) -> bool:
        return index + 1 == len(self._loops)

    def _end(self) -> None:
        assert self._standing is not None, "it came to the top of its innermost loop"
        self.sources.check()
        self._runtime.opened = self._standing.opened
        self._runtime.winds = None


def _sliced(iterable: range, place: LoopPlace) -> Iterator[Any]:
    if place.item is None or place.item not in iterable:
        raise NotReachable(NO_ITEM.format(loop=place.loop_id, range=iterable, item=place.item))
    return iter(iterable[iterable.index(place.item) :])
