"""Making up microbatches of lost slots, exactly where that can be done, honestly where it cannot.

Exact: the survivor executes the script's code as the lost rank (`impersonate`). Where the lost rank
left nothing usable, or what it would have drawn cannot be told, the survivor computes a microbatch
of fresh data of its own instead: the step still has its B microbatches, and the run says that from
here on its promise is `equal-count`.
"""

import threading
from collections.abc import Callable

from recoverrun.hooks.context import Context
from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.impersonate import Impersonator
from recoverrun.hooks.runtime import Shape
from rendezvous.messages import Legacy

LEGACY_WAIT_S = 2.0
"""What a lost rank left comes after the view without it: at once, if anything is there to come."""


class MakeUp:
    """`exact` tells whether the promise is still kept; `on_downgrade` is told the reason once."""

    def __init__(self, impersonator: Impersonator, on_downgrade: Callable[[str], None]) -> None:
        self._impersonator = impersonator
        self._on_downgrade = on_downgrade
        self._came = threading.Condition()
        self._legacy: dict[int, tuple[bytes, ...]] = {}
        self.exact = True

    def inherit(self, legacy: Legacy) -> None:
        """From the control thread: what lost ranks left."""
        with self._came:
            self._legacy.update(legacy.contexts)
            self._came.notify_all()

    def await_legacy(self, rank: int) -> None:
        """Wait for what lost `rank` left, if that may still come and matters.

        Before a decision it may not be there yet: the script's thread hears of a view as soon as
        its collectives do.
        """
        if not self.exact:
            return
        with self._came:
            self._came.wait_for(lambda: rank in self._legacy, timeout=LEGACY_WAIT_S)

    def absorb(self, step: int, *, over: bool = False) -> None:
        """Take in what lost ranks left, as soon as it is there: own captures are kept not long.

        If `step` is `over`, who had come to the next one is spoken for from there, at its top.
        """
        with self._came:
            legacy = dict(self._legacy)
        for rank in sorted(legacy):
            self._impersonator.inherit(rank, legacy[rank])
            if over and any(one.step > step for one in self._impersonator.remains[rank]):
                continue
            try:
                self._impersonator.knows(rank, step)
            except NotReplayable as reason:
                self.downgrade(str(reason))

    def begin_step(self, top: Context) -> None:
        """A step begins at our own capture `top`."""
        self.absorb(top.step)
        if self.exact:
            self._trying(lambda: self._impersonator.follow(top))

    def end_step(self, step: int, shape: Shape | None) -> None:
        """`step` is committed; what follows belongs to the next.

        A rank that was lost in it and made up for by others begins its chain here, too.
        """
        self.absorb(step, over=True)
        self._impersonator.runtime.begin_anew()
        if self.exact and shape is not None:
            self._trying(lambda: self._impersonator.complete(shape))

    def _trying(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NotReplayable as reason:
            self.downgrade(str(reason))

    def compute(self, rank: int, index: int, step: int, shape: Shape) -> None:
        """Compute microbatch `index` of lost `rank` into our accumulators.

        Raises what the script's own code raises.
        """
        self.absorb(step)
        if not self._compute_as(rank, index, step, shape):
            self._impersonator.execute_fresh(index, shape)

    def _compute_as(self, rank: int, index: int, step: int, shape: Shape) -> bool:
        """Whether the microbatch could be computed as the lost rank's own."""
        if not self.exact:
            return False
        try:
            if not self._impersonator.knows(rank, step):
                self.downgrade(f"rank {rank} left no context that can be used in step {step}")
                return False
            if self._impersonator.execute(rank, index, shape):
                return True
        except NotReplayable as reason:
            self.downgrade(str(reason))
            return False
        self.downgrade(f"re-executing {shape.region.id} as rank {rank} reached no backward")
        return False

    def downgrade(self, reason: str) -> None:
        """From now on lost microbatches are made up with fresh data."""
        if self.exact:
            self.exact = False
            self._on_downgrade(reason)
