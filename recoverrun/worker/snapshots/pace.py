"""The interval of snapshots: fixed, or as short as costs little.

All ranks have to take the same ones, and no vote joins them. With a fixed number they know. With
`auto` one rank decides, in the step after a snapshot, which is the next one; the others ask in the
step after that. Ranks that reduce gradients together cannot be two steps apart, so what they ask
for is there; if the one that decides was lost before, they have heard of that.
"""

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Protocol

SHARE = 0.01
"""Of training time that snapshots may cost."""

SOON = 3
"""Steps from one snapshot to the next while their cost is not known, and at least."""

CHANGE = 1.5
"""By a smaller factor the pace is not changed."""

SAID = "a snapshot every {} steps: one costs {:.1f} ms, a step {:.1f}"

KEPT = 32
"""Steps whose times are looked at."""


class Pace(Protocol):
    """The pace of one rank."""

    def begins_at(self, step: int) -> None:
        """All ranks go on at this step: from its snapshot, or with a replica that came back."""

    def is_due(self, step: int, now: float) -> bool:
        """True if one is to be taken at the top of this step, at `now` in seconds."""

    def took(self, seconds: float, *, learning: bool) -> None:
        """Training stood still so long for a snapshot, at its top or its fence. One in which all is
        copied at once, to be `learning`, costs more than others.
        """


class FixedPace:
    """Every `every` steps, from the `every`-th on."""

    def __init__(self, every: int) -> None:
        self._every = every

    def begins_at(self, step: int) -> None:
        """Steps are counted from the beginning of the run."""

    def is_due(self, step: int, now: float) -> bool:
        return step % self._every == 0

    def took(self, seconds: float, *, learning: bool) -> None:
        """It is the user's wish."""


class AutoPace:
    """A pace that costs at most SHARE of the time."""

    def __init__(
        self, tell: Callable[[int, int, str], None] | None, hear: Callable[[int], int]
    ) -> None:
        """On the rank that decides, `tell` says which snapshot follows that of a step, and why. The
        others `hear` it.
        """
        self._tell = tell
        self._hear = hear
        self._newest = 0  # the step of the newest snapshot
        self._next = SOON
        self._every = 0  # as last decided
        self._began: float | None = None  # when the present step did
        self._copied = False  # a snapshot was taken in it
        self._stood_s = 0.0  # in it
        self._learning = False
        self._costs: deque[float] = deque(maxlen=KEPT)
        self._steps: deque[float] = deque(maxlen=KEPT)  # without a snapshot
        self._beside: deque[float] = deque(maxlen=KEPT)  # with one, what it stood still left out

    def begins_at(self, step: int) -> None:
        self._newest, self._next, self._began = step, step + SOON, None

    def is_due(self, step: int, now: float) -> bool:
        self._note(now)
        if step == self._newest + 1 and self._tell is not None:
            self._next, why = self._decided()
            self._tell(self._newest, self._next, why)
        if step == self._newest + 2 and self._tell is None:
            self._next = self._hear(self._newest)
        if step < self._next:
            return False
        self._newest = step
        self._next = step + SOON
        self._copied = True
        return True

    def took(self, seconds: float, *, learning: bool) -> None:
        self._stood_s += seconds
        self._learning |= learning

    def _note(self, now: float) -> None:
        """The step before is over."""
        if self._began is not None:
            spent = now - self._began - self._stood_s
            (self._beside if self._copied else self._steps).append(spent)
            if self._copied and not self._learning:
                self._costs.append(self._stood_s)
        self._began, self._copied, self._stood_s, self._learning = now, False, 0.0, False

    def _decided(self) -> tuple[int, str]:
        """The step of the next snapshot, and why; "" if the pace stays what it was."""
        if not self._costs or not self._steps:
            return self._newest + SOON, ""
        step, cost = median(self._steps), median(self._costs)
        slower = median(self._beside) - step
        spread = median(abs(one - step) for one in self._steps)
        if slower > spread:
            cost += slower
        every = max(SOON, math.ceil(cost / (SHARE * step))) if step > 0 else SOON
        known, why = self._every, ""
        if not known or not known / CHANGE < every < known * CHANGE:
            self._every = every
            why = SAID.format(every, 1000 * cost, 1000 * step)
        return self._newest + self._every, why
