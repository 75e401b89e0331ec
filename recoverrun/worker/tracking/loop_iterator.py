"""What an instrumented `for` of the script iterates over, and where its function is."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from recoverrun.worker.tracking.loop_frames import LoopFrame, LoopStack


class Hears(Protocol):
    """What is told of a loop."""

    loop_stack: LoopStack

    def goes_over(self, loop_frame: LoopFrame, iterable: Iterable[Any]) -> None:
        """The loop begins."""

    def begin_iteration(self, loop_frame: LoopFrame) -> None:
        """Its next item is about to be drawn."""

    def pop(self, loop_frame: LoopFrame) -> None:
        """It has ended."""


class LoopIterator:
    """The iterator of an instrumented `for`: tells the runtime where each iteration begins."""

    def __init__(self, runtime: Hears, loop_frame: LoopFrame, iterable: Iterable[Any]) -> None:
        self._runtime = runtime
        self._iterable = iterable
        self._loop_frame = loop_frame
        self._items: Iterator[Any] | None = None
        self._counts = type(iterable) is range  # draws nothing: its end needs no look around

    def __iter__(self) -> "LoopIterator":
        return self

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if self._items is None:
            self._items = iter(self._iterable)
            self._runtime.loop_stack.push(self._loop_frame, sys._getframe(1))
            if not self._counts:
                self._runtime.goes_over(self._loop_frame, self._iterable)
        self._runtime.loop_stack.trim(self._loop_frame)
        if not self._counts:
            self._runtime.begin_iteration(self._loop_frame)
        try:
            item = next(self._items)
        except StopIteration:
            self._runtime.pop(self._loop_frame)
            raise
        if self._counts:
            self._runtime.begin_iteration(self._loop_frame)
        self._loop_frame.item = item
        return item
