"""The interface of the tracker to a process that comes into the middle of the script's loops."""

from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol

from recoverrun.worker.tracking.microbatches import LoopFrame


class LoopWinder(Protocol):
    """Winds loops forward (`arrival.winding`). An ordinary process has none."""

    def passes_over(self, loop_frame: LoopFrame, frame: FrameType) -> bool:
        """The loop is about to begin in `frame`; nothing of it has been asked for. True if it is
        over elsewhere, and does not begin here.
        """

    def begins(
        self, loop_frame: LoopFrame, iterable: Iterable[Any], items: Iterator[Any]
    ) -> Iterator[Any]:
        """A `for` begins. Return the iterator to go on with, in the place of `items`."""

    def enters(self, loop_frame: LoopFrame) -> None:
        """A `while` begins; its test is about to be evaluated."""

    def top(self, loop_frame: LoopFrame, local: dict[str, Any], global_: dict[str, Any]) -> None:
        """An iteration begins, and the tracker has not looked around. `local` may be written to."""

    def opens(self, number: int) -> Callable[[Any], Iterator[Any]] | None:
        """The script makes an iterator of a loader, its `number`-th. Return how to make its own
        half late, given the whole (a `LoaderIterator`); None if it is to be made as ever.
        """
