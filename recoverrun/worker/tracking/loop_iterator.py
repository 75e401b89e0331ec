"""The iterator of an instrumented `for` of the script, and where its function is."""

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Protocol

from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from rendezvous.protocol.progress_page import Phase


class Hears(Protocol):
    """The listener of a loop."""

    script: ScriptRuntime

    def goes_over(self, loop_frame: LoopFrame, iterable: Iterable[Any]) -> None:
        """The loop begins."""

    def begin_iteration(self, loop_frame: LoopFrame) -> None:
        """Its next item is about to be drawn."""

    def pop(self, loop_frame: LoopFrame) -> None:
        """Remove a loop that has ended."""


class LoopIterator:
    """The iterator of an instrumented `for`: tells the tracker where each iteration begins."""

    def __init__(self, tracker: Hears, loop_frame: LoopFrame, iterable: Iterable[Any]) -> None:
        self._tracker = tracker
        self._iterable = iterable
        self._loop_frame = loop_frame
        self._items: Iterator[Any] | None = None
        self._counts = type(iterable) is range  # draws nothing: its end needs no look around

    def __iter__(self) -> "LoopIterator":
        return self

    @property
    def items(self) -> Iterator[Any] | None:
        """The iterator from which it takes its items; None until it is asked for the first one."""
        return self._items

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        first = self._items is None
        if not self._counts:
            self._tracker.script.progress.at(Phase.FIRST_DATA if first else Phase.DATA)
        items = self._items
        if items is None:
            items = self._begin(sys._getframe(1))
        if items is None:
            raise StopIteration
        self._tracker.script.loop_stack.trim(self._loop_frame)
        if not self._counts:
            self._tracker.begin_iteration(self._loop_frame)
            self._loop_frame.fetches = True
        try:
            item = next(items)
        except StopIteration:
            self._tracker.pop(self._loop_frame)
            raise
        self._loop_frame.fetches = False
        if self._counts:
            self._tracker.begin_iteration(self._loop_frame)
        self._loop_frame.item = item
        return item

    def _begin(self, frame: FrameType) -> Iterator[Any] | None:
        """The items; None if the loop is passed over."""
        winds = self._tracker.script.winds
        if winds is not None and winds.passes_over(self._loop_frame, frame):
            return None
        items = iter(self._iterable)
        self._loop_frame.over, self._loop_frame.items = self._iterable, items
        self._tracker.script.loop_stack.push(self._loop_frame, frame)
        if not self._counts:
            self._tracker.goes_over(self._loop_frame, self._iterable)
        if winds is not None:
            self._loop_frame.fetches = not self._counts
            items = winds.begins(self._loop_frame, self._iterable, items)
        self._items = self._loop_frame.items = items
        return items
