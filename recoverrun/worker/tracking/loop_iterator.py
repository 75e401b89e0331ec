"""What an instrumented `for` of the script iterates over, and where its function is."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from recoverrun.worker.tracking.loop_frames import Turn, Turns


class Hears(Protocol):
    """What is told of a loop."""

    turns: Turns

    def goes_over(self, turn: Turn, iterable: Iterable[Any]) -> None:
        """The loop begins."""

    def begin_iteration(self, turn: Turn) -> None:
        """Its next item is about to be drawn."""

    def pop(self, turn: Turn) -> None:
        """It has ended."""


class LoopIterator:
    """The iterator of an instrumented `for`: tells the runtime where each iteration begins."""

    def __init__(self, runtime: Hears, turn: Turn, iterable: Iterable[Any]) -> None:
        self._runtime = runtime
        self._iterable = iterable
        self._turn = turn
        self._items: Iterator[Any] | None = None
        self._counts = type(iterable) is range  # draws nothing: its end needs no look around

    def __iter__(self) -> "LoopIterator":
        return self

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if self._items is None:
            self._items = iter(self._iterable)
            self._runtime.turns.push(self._turn, sys._getframe(1))
            if not self._counts:
                self._runtime.goes_over(self._turn, self._iterable)
        self._runtime.turns.trim(self._turn)
        if not self._counts:
            self._runtime.begin_iteration(self._turn)
        try:
            item = next(self._items)
        except StopIteration:
            self._runtime.pop(self._turn)
            raise
        if self._counts:
            self._runtime.begin_iteration(self._turn)
        self._turn.item = item
        return item
