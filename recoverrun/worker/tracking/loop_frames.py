"""The loops that are under way, and those of generators that wait until they are asked again.

A loop that is left by an error or by `return` says nothing: whether it is still under way is seen
by the frames of the calls that run now. A generator's frame is not among them while it waits, so
its loops are put aside and taken up again where they go on.
"""

from collections.abc import Callable
from types import FrameType

from recoverrun.worker.tracking.microbatches import LoopFrame
from recoverrun.worker.tracking.python_frames import find_frame
from recoverrun.worker.tracking.trained_loops import TrainedLoop

ASLEEP = 16
"""Loops of generators that may go on; of a generator that was dropped nobody says so."""


class LoopStack:
    """`stack` holds those under way, the outermost first."""

    def __init__(self) -> None:
        self.stack: list[LoopFrame] = []
        self.begun = 0
        self.trained: dict[int, TrainedLoop] = {}  # loops in no other, by number
        self._asleep: list[LoopFrame] = []  # of waiting generators, the innermost of each first
        self._told: int | None = None  # number of the next iteration if another rank told it

    def push(self, loop_frame: LoopFrame, frame: FrameType) -> None:
        """`loop_frame` begins in the call that runs in `frame`."""
        self.drop_stale(frame)
        again = self.stack and self.stack[-1].frame_id == loop_frame.frame_id
        if again and self.stack[-1].loop is loop_frame.loop:
            self.stack.pop()  # the same loop begins anew after it was left by `break`
        loop_frame.number = self.begun
        self.begun += 1
        self.stack.append(loop_frame)

    def attempt(self) -> int:
        """Count the iteration that begins: its number since the last backward, on all ranks that
        have come as far in the loops around it. What a rank has gone through alone before, in loops
        that are over, does not count.
        """
        newest = self.stack[-1]
        if self._told is not None:
            self.begin_counts()
            newest.begun, self._told = self._told, None
        newest.begun += 1
        return sum(one.begun for one in self.stack if _is_around(one, newest)) - 1

    def number(self) -> int:
        """The number of the iteration that is under way, for a process that begins it, too."""
        counts = [one.begun for one in self.stack if _is_around(one, self.stack[-1])]
        return max(0, sum(counts) - 1)

    def tell(self, number: int) -> None:
        """The iteration that begins next is that one on other ranks."""
        self._told = number

    def begin_counts(self) -> None:
        """A backward has ended."""
        for loop_frame in (*self.stack, *self._asleep):
            loop_frame.begun = 0

    def note_backward(self) -> None:
        """All loops that are under way have trained."""
        around = self.trained
        for loop_frame in self.stack:
            if loop_frame.number not in around:
                around[loop_frame.number] = TrainedLoop(loop_frame.loop)
            around = loop_frame.trained

    def trained_before(self) -> list[dict[int, TrainedLoop]]:
        """Those that have trained and ended, by number, on the straight way to where the script is:
        before each of the loops that are under way, the outermost first, and then in the innermost.
        """
        levels, around = [], self.trained
        for loop_frame in self.stack:
            ended = (pair for pair in around.items() if pair[0] != loop_frame.number)
            levels.append(dict(ended))
            around = loop_frame.trained
        return [*levels, dict(around)]

    def pass_over(self, passed: TrainedLoop, frame: FrameType) -> None:
        """A loop begins in the call that runs in `frame`, and ends at once: it has trained in other
        processes.
        """
        self.drop_stale(frame)
        around = self.stack[-1].trained if self.stack else self.trained
        around[self.begun] = passed
        self.begun += 1

    def end(self, loop_frame: LoopFrame) -> TrainedLoop | None:
        """Remove a loop that has ended by itself or by `break`. Returned is what it has left behind
        if it has trained.
        """
        if loop_frame not in self.stack:
            return None
        at = self.stack.index(loop_frame)
        around = self.stack[at - 1].trained if at else self.trained
        self.pop(loop_frame)
        return around.get(loop_frame.number)

    def around_fetches(self) -> list[LoopFrame]:
        """Those around the first `for` that asks for its next item; all if none does."""
        fetching = (at for at, one in enumerate(self.stack) if one.fetches)
        return self.stack[: next(fetching, None)]

    def pop(self, loop_frame: LoopFrame) -> None:
        """Remove a loop that has ended, and with it all that began in it."""
        if loop_frame in self.stack:
            del self.stack[self.stack.index(loop_frame) :]

    def under_way(self, loop_id: str, frame: FrameType) -> LoopFrame | None:
        """The innermost turn of this loop; those inside it were left without a word, and end."""
        loop_frame = self._found(loop_id)
        if loop_frame is None and self._asleep:
            self._wake(lambda one: find_frame(one.frame_id, frame) is not None)
            loop_frame = self._found(loop_id)
        if loop_frame is not None:
            self.trim(loop_frame)
        return loop_frame

    def turn_in(self, loop_id: str, frame: FrameType) -> LoopFrame | None:
        """The turn of this loop that is under way in the call that runs in `frame`."""
        turns = ((one.loop.id, one.frame_id) for one in (*self.stack, *self._asleep))
        return self.under_way(loop_id, frame) if (loop_id, id(frame)) in turns else None

    def trim(self, loop_frame: LoopFrame) -> None:
        """Loops inside `loop_frame` that were left without a word are over."""
        if self.stack and self.stack[-1] is loop_frame:
            return
        if loop_frame in self._asleep:
            self._wake(lambda one: one.frame_id == loop_frame.frame_id)
        if loop_frame in self.stack:
            del self.stack[self.stack.index(loop_frame) + 1 :]

    def drop_stale(self, frame: FrameType) -> None:
        """Drop loops that were left by `break` or an error: their code is no longer under way."""
        while self.stack:
            loop_frame = self.stack[-1]
            at = find_frame(loop_frame.frame_id, frame)
            if at is not None and loop_frame.loop.line <= at.f_lineno <= loop_frame.loop.last_line:
                return
            self._drop()

    def _found(self, loop_id: str) -> LoopFrame | None:
        return next(
            (loop_frame for loop_frame in reversed(self.stack) if loop_frame.loop.id == loop_id),
            None,
        )

    def _drop(self) -> None:
        loop_frame = self.stack.pop()
        if loop_frame.loop.waits:
            self._asleep = [*self._asleep[1 - ASLEEP :], loop_frame]

    def _wake(self, which: Callable[[LoopFrame], bool]) -> None:
        woken = [loop_frame for loop_frame in reversed(self._asleep) if which(loop_frame)]
        self._asleep = [loop_frame for loop_frame in self._asleep if loop_frame not in woken]
        self.stack += woken


def _is_around(one: LoopFrame, other: LoopFrame) -> bool:
    """False if `one` was left by `break` in the call that runs `other` now."""
    return one.frame_id != other.frame_id or (
        one.loop.line <= other.loop.line <= one.loop.last_line
    )


def line_of(loop_frame: LoopFrame, frame: FrameType) -> int:
    """The present line of its body; 0 where it is not known."""
    at = find_frame(loop_frame.frame_id, frame)
    return at.f_lineno if at is not None else 0
