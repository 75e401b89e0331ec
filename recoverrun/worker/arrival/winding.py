"""Into the middle of the loops: a fresh process goes where a survivor stands.

The script runs from its first line. Loops that are on the survivor's stack are wound forward as
they begin, the outermost first: a `range` begins at the survivor's item, other iterables are passed
item by item, and of a loader's iterator items are only counted. A `while` is entered. A loop that
has trained and is over is passed over as a whole (`passed_loops`). Code between two of these loops
runs once, in the iteration in which the survivor is. At the top of the innermost one everything is
put in place (`Arrives.arrived`), and from there on the script runs by itself.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any, Protocol

from recoverrun.worker.arrival import passed_loops
from recoverrun.worker.arrival.frame_variables import refresh
from recoverrun.worker.arrival.passed_loops import PassedLoop
from recoverrun.worker.arrival.slot_sources import SlotSources
from recoverrun.worker.arrival.source_places import OriginOf, SourcePlace, told_sources
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from recoverrun.worker.tracking.trained_loops import RETURNED, TrainedLoop

HELD = (list, tuple, dict, str, set, frozenset, bytes)
"""Kinds whose items are there: to pass one costs nothing, and does nothing."""

TRAINED = "the loop at {loop}, which has trained, has ended before the one that trains now"
NO_LOOP = "no loop of the script is under way"
ELSEWHERE = "this process is at the loop at {here}, while others train in the loop at {there}"
NO_ITEM = "the loop at {loop} goes over {range}, which lacks {item}, where the others are"
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
    passed: tuple[PassedLoop, ...] = ()  # before it, in the present iteration of the one around it

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        passed = [one.pack() for one in self.passed]
        return [self.loop_id, self.iteration, self.item, self.opened, passed]

    @staticmethod
    def unpack(loop_id: Any, iteration: Any, item: Any, opened: Any, passed: Any) -> "LoopPlace":
        """Raises ValueError if these are not what `pack` makes."""
        return LoopPlace(
            str(loop_id),
            int(iteration),
            None if item is None else int(item),
            int(opened),
            tuple(map(PassedLoop.unpack, passed)),
        )


@dataclass(frozen=True, slots=True)
class SurvivorPosition:
    """The position of a survivor: at the top of the last one of `loops`, the outermost first."""

    loops: tuple[LoopPlace, ...]
    sources: tuple[SourcePlace, ...]
    opened: int  # iterators of loaders that the process has made
    own_data: bool = False  # a slot's order of data is whatever it is in its process

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        loops = [one.pack() for one in self.loops]
        return [loops, [one.pack() for one in self.sources], self.opened, self.own_data]

    @staticmethod
    def unpack(packed: list[Any]) -> "SurvivorPosition":
        """Raises ValueError if `packed` is not what `pack` makes."""
        loops, sources, opened, own_data = packed
        return SurvivorPosition(
            loops=tuple(LoopPlace.unpack(*one) for one in loops),
            sources=tuple(SourcePlace.unpack(one) for one in sources),
            opened=int(opened),
            own_data=bool(own_data),
        )


class Arrives(Protocol):
    """The interface that puts in place what a fresh process needs, as it comes there."""

    def before(self, loop_id: str) -> SurvivorPosition:
        """The outermost loop is about to begin: wait for a place, and return it."""

    def passes_over(self, trained: TrainedLoop, frame: FrameType) -> None:
        """A loop that is over elsewhere is passed over in `frame`: put what it has left in place,
        and what code behind it may look at.
        """

    def restore(self, index: int) -> None:
        """In loop `index` this is where `LoopFrame.streams` of its present iteration were read:
        right before the header of a `for`, at the top of a `while`. Put the slot's streams of that
        moment in place; not once more at the top, as the header may draw. Generators that the
        script keeps are told as of the top, and are for `arrived`.
        """

    def finds(self, loop_frame: LoopFrame) -> None:
        """Items of this loop are about to be passed: code of the script's may give them."""

    def passes(self, index: int, loop_frame: LoopFrame) -> None:
        """The body of loop `index`, which is not the innermost, begins. It runs only once."""

    def arrived(self, loop_frame: LoopFrame, global_: dict[str, Any]) -> None:
        """The top of the innermost loop is reached: put variables and all else in place.
        `Winding.sources.hold` gives the iterators that they are to hold.
        """


def standing(
    runtime: ScriptRuntime,
    origin_of: OriginOf = lambda one: one.origin,
    *,
    own_data: bool = False,
    passes: bool = True,
) -> SurvivorPosition:
    """Tell where this process stands, at the top of the innermost loop that is under way.
    `own_data`: the order of data is not that of the slot, but the fresh process's own. Not `passes`
    if the fresh process may not run the code behind loops that have trained.

    Raises NotReachable if a fresh process cannot come there.
    """
    stack = runtime.stack
    if not stack:
        raise NotReachable(NO_LOOP)
    levels = passed_loops.told(runtime.loop_stack)
    if not passes and (over := [one for level in levels for one in level]):
        raise NotReachable(TRAINED.format(loop=over[0].loop_id))
    loops = [
        LoopPlace(
            one.loop.id,
            one.iteration,
            one.item if type(one.item) is int else None,
            one.opened,
            passed,
        )
        for one, passed in zip(stack, levels, strict=True)
    ]
    sources = told_sources(runtime.sources, stack[-1], origin_of)
    return SurvivorPosition(tuple(loops), tuple(sources), runtime.opened, own_data)


class Winding:
    """The winding of a fresh process, until it has arrived. Implements `LoopWinder`."""

    def __init__(
        self,
        runtime: ScriptRuntime,
        outermost: str,
        arrives: Arrives,
        passed: Sequence[PassedLoop] = (),
    ) -> None:
        """`outermost` is the id of the loop before which a place is waited for, behind those that
        are `passed` over.
        """
        self._runtime = runtime
        self._outermost = outermost
        self._arrives = arrives
        self._first = passed  # as far as others had come as this process began
        self._over = 0  # loops passed over, since the innermost loop of the path has begun
        self._standing: SurvivorPosition | None = None
        self._frames: list[LoopFrame] = []  # of the loops of the path that have begun
        self.sources = SlotSources(runtime)

    # --------------------------------------------------------------------------- Winds

    def passes_over(self, loop_frame: LoopFrame, frame: FrameType) -> bool:
        loop_id = loop_frame.loop.id
        waits = self._standing is None and not self._to_pass() and loop_id == self._outermost
        if waits:
            told = self._standing = self._arrives.before(loop_id)
            self.sources.take(told.sources, own_data=told.own_data)
        passed = self._to_pass()
        there = passed[0].loop_id if passed else self._loops[0].loop_id if waits else loop_id
        if waits and there != loop_id:
            raise NotReachable(ELSEWHERE.format(here=loop_id, there=there))
        if not passed or there != loop_id:
            return False
        trained = passed[0].trained(loop_frame.loop)
        self._over += 1
        self._runtime.loop_stack.pass_over(trained, frame)
        self._runtime.opened = trained.opened
        self._arrives.passes_over(trained, frame)
        values = trained.values or {}
        self._runtime.result = (loop_id, values[RETURNED]) if RETURNED in values else None
        return True

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
            self._arrives.passes(index, loop_frame)
            refresh(local, self._runtime.stack, sys._getframe(1))
            return
        self._arrives.arrived(loop_frame, global_)
        refresh(local, self._runtime.stack, sys._getframe(1))
        self._end()

    def opens(self, number: int) -> Callable[[LoaderIterator], Iterator[Any]] | None:
        return self.sources.opens(number)

    # --------------------------------------------------------------------------- on the way

    @property
    def _loops(self) -> Sequence[LoopPlace]:
        return () if self._standing is None else self._standing.loops

    def _to_pass(self) -> Sequence[PassedLoop]:
        """The loops that are to be passed over before the next loop of the path begins."""
        at = len(self._frames)
        if self._standing is None:
            return self._first[self._over :]
        return self._loops[at].passed[self._over :] if at < len(self._loops) else ()

    def _begun(self, loop_frame: LoopFrame) -> int | None:
        """The place in the path of a loop that has just begun; None if it is not on it."""
        index = len(self._frames)
        if index == len(self._loops) or self._loops[index].loop_id != loop_frame.loop.id:
            return None
        self._over = 0
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
    """The items from that of the others on. A script that resumes from a checkpoint of its own may
    begin behind it.
    """
    item, step = place.item, iterable.step
    if item is not None:
        behind = (iterable.start - item) / step
        if item in iterable or (behind > 0 and behind.is_integer()):
            return iter(range(item, iterable.stop, step))
    raise NotReachable(NO_ITEM.format(loop=place.loop_id, range=iterable, item=item))
