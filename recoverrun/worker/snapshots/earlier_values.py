"""The values of the script before the present step: as it began to train, and as the iterations of
the loops around it began.

A snapshot tells what has changed since. A process that takes a lost rank's place has seen neither:
another one tells it.
"""

import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from recoverrun.worker.arrival.frame_variables import frames_of, stack_of
from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.snapshots.files_read_back import FilesReadBack
from recoverrun.worker.snapshots.outer_tops import OuterTops
from recoverrun.worker.snapshots.pace import SHARE
from recoverrun.worker.snapshots.queue_takes import QUEUES
from recoverrun.worker.snapshots.values_at_start import ValuesAtStart
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.tracking.microbatches import LoopFrame, Top
from rendezvous.protocol.worker_env import UNASKED

MANY = "there are many loops that may train, and it takes too long to look around before each"

LOOKS_S = 0.2
"""Looks before loops that may train may take so long where nobody has asked for snapshots, and
SHARE of the time since then."""

UNTOLD = "the state cannot be captured: {!r}"


class EarlierValues:
    """The earlier values of one process. Implements `arrival.learned.TakesSnapshots`."""

    def __init__(self, parts: PlaceParts, steps: UnvotedSteps, outer: OuterTops) -> None:
        self._parts = parts
        self._steps = steps
        self._outer = outer
        self.before: ValuesAtStart | None = None  # until the script is about to train
        self.unseen = ""  # why it is not known
        self.files = FilesReadBack(lambda: parts.worker.runtime.own_modules)
        self._unasked = parts.worker.env.snapshot_every == UNASKED
        self._born, self._looked_s = time.monotonic(), 0.0

    def look_around(self) -> None:
        """The script may be about to train."""
        self._watch()
        runtime, unasked = self._parts.worker.runtime, self._unasked
        began = time.monotonic()
        if unasked and self._looked_s > LOOKS_S + SHARE * (began - self._born):
            self.before, self.unseen = None, MANY
            return
        frames = frames_of(runtime.stack, sys._getframe(1))
        try:
            self.before = ValuesAtStart.seen(frames, runtime, self._parts.made)
        except Exception as error:  # protects a healthy run from what its objects say of themselves
            self.before, self.unseen = None, UNTOLD.format(error)
            if not unasked:
                self._parts.worker.take_no_snapshots(self.unseen)
        self._looked_s += time.monotonic() - began

    def forget(self) -> None:
        """No snapshot is taken any more: nothing is compared with what was before."""
        self.before = None

    def step_begins(self, stack: Sequence[LoopFrame]) -> None:
        """Note the top of the last loop of `stack`."""
        self._watch()
        self._outer.step_begins(stack)

    def _watch(self) -> None:
        """See what the script takes from queues and writes to files from now on. It costs a little:
        not while nobody has asked for snapshots, and steps may outlive a loss.
        """
        if not (self._unasked and self._parts.worker.transacts):
            QUEUES.watch()
            self.files.watch()

    def note(self, top: Top) -> None:
        """An iteration begins, perhaps of a loop around those whose iterations are steps."""
        if self.before is None:
            return
        stack = stack_of(self._parts.worker.runtime.stack, top)
        try:
            self._outer.begins(stack, sys._getframe(1), self.before.digests)
        except Exception as error:  # protects a healthy run from what its objects say of themselves
            self._parts.worker.take_no_snapshots(UNTOLD.format(error))

    def passes(self, stack: Sequence[LoopFrame]) -> list[list[Any]]:
        """The part of each loop around the last one of `stack`: plain values for msgpack."""
        return self._outer.told(stack, sys._getframe(1))

    # --------------------------------------------------------------------------- lost ranks return

    def told(self, top: Top) -> list[Any] | None:
        """Plain values for msgpack: where snapshots stand at `top`. None if this rank takes none
        any more.
        """
        worker = self._parts.worker
        if worker.unvoted is not self._steps or self.before is None:
            return None
        stack = stack_of(worker.runtime.stack, top)
        return [self._steps.index_at(top), self.before.pack(), self._outer.noted(stack)]

    def comes(self, told: list[Any] | None, frame: FrameType) -> None:
        """This process takes a lost rank's place. Of the script only its first lines have run, and
        `frame` is below it: what they have made is what others had before they trained.
        """
        worker, runtime = self._parts.worker, self._parts.worker.runtime
        if told is None:
            worker.unvoted = None
            return
        self._steps.index, before, noted = told
        stack = runtime.stack
        first_lines = ValuesAtStart.seen(frames_of(stack[:1], frame), runtime, self._parts.made)
        self.before = first_lines.shared_with(before)
        self._outer.follow(stack, noted)
