"""The loops that are under way, and those of generators that wait until they are asked again.

A loop that is left by an error or by `return` says nothing: whether it is still under way is seen
by the frames of the calls that run now. A generator's frame is not among them while it waits, so
its loops are put aside and taken up again where they go on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from recoverrun.worker.data.source import Draw
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.microbatches import Top
from recoverrun.worker.tracking.python_frames import find_frame

if TYPE_CHECKING:
    from recoverrun.worker.rng.streams import Streams

ASLEEP = 16
"""Loops of generators that may go on; of a generator that was dropped nobody says so."""


@dataclass(slots=True, eq=False)
class Turn:
    """A loop that is under way, at its present iteration."""

    loop: Loop
    frame_id: int
    iteration: int = -1
    item: Any = None
    streams: "Streams | None" = None
    draws: list[Draw] = field(default_factory=list)
    ahead: list[Draw] = field(default_factory=list)
    held: list[Draw] = field(default_factory=list)  # before it, of what it goes over
    adopted: int = 0  # iterators of the process when this iteration began
    heard: int = 0
    backwards: int = 0  # in this iteration
    seeded: bool = False
    counts: dict[int, int] = field(default_factory=dict)  # of items, by source, before its header
    top: Top | None = None


class Turns:
    """`stack` holds those under way, the outermost first."""

    def __init__(self) -> None:
        self.stack: list[Turn] = []
        self._asleep: list[Turn] = []  # those that wait, the innermost of a generator first

    def push(self, turn: Turn, frame: FrameType) -> None:
        """`turn` begins in the call that runs in `frame`."""
        while self.stack and find_frame(self.stack[-1].frame_id, frame) is None:
            self._drop()
        again = self.stack and self.stack[-1].frame_id == turn.frame_id
        if again and self.stack[-1].loop is turn.loop:
            self.stack.pop()  # the same loop begins anew after it was left by `break`
        self.stack.append(turn)

    def pop(self, turn: Turn) -> None:
        """It has ended, and with it all that began in it."""
        if turn in self.stack:
            del self.stack[self.stack.index(turn) :]

    def under_way(self, loop_id: str, frame: FrameType) -> Turn | None:
        """The innermost turn of this loop; those inside it were left without a word, and end."""
        turn = self._found(loop_id)
        if turn is None and self._asleep:
            self._wake(lambda one: find_frame(one.frame_id, frame) is not None)
            turn = self._found(loop_id)
        if turn is not None:
            self.trim(turn)
        return turn

    def trim(self, turn: Turn) -> None:
        """Loops inside `turn` that were left without a word are over."""
        if self.stack and self.stack[-1] is turn:
            return
        if turn in self._asleep:
            self._wake(lambda one: one.frame_id == turn.frame_id)
        if turn in self.stack:
            del self.stack[self.stack.index(turn) + 1 :]

    def drop_stale(self, frame: FrameType) -> None:
        """Loops that were left by `break` or an error said nothing: is their code under way?"""
        while self.stack:
            turn = self.stack[-1]
            at = find_frame(turn.frame_id, frame)
            if at is not None and turn.loop.line <= at.f_lineno <= turn.loop.last_line:
                return
            self._drop()

    def _found(self, loop_id: str) -> Turn | None:
        return next((turn for turn in reversed(self.stack) if turn.loop.id == loop_id), None)

    def _drop(self) -> None:
        turn = self.stack.pop()
        if turn.loop.waits:
            self._asleep = [*self._asleep[1 - ASLEEP :], turn]

    def _wake(self, which: Callable[[Turn], bool]) -> None:
        woken = [turn for turn in reversed(self._asleep) if which(turn)]
        self._asleep = [turn for turn in self._asleep if turn not in woken]
        self.stack += woken


def line_of(turn: Turn, frame: FrameType) -> int:
    """Where its body is now; 0 where nobody needs to know, as it waits nowhere."""
    at = find_frame(turn.frame_id, frame) if turn.loop.waits else None
    return at.f_lineno if at is not None else 0
