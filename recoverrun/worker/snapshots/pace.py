"""The interval of snapshots: fixed, or as short as costs little.

All ranks have to take the same ones, and no vote joins them. With a fixed number they know. With
`auto` one rank decides, in the step after a snapshot, which is the next one; the others ask in the
step after that, and in each one that follows until they know. Ranks that reduce gradients in each
step cannot be two steps apart, so they know at once. Where ranks may be further apart (they average
parameters now and then, or have different numbers of steps) nobody waits: who learns of a snapshot
too late takes no part in it, and it never gets whole.

Where nobody has asked for snapshots the first one waits until training has lasted for a while. As
ranks have clocks of their own, the one that decides names steps at which it looks at its clock
again, in the same way.
"""

import math
import sys
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
WORK = "a snapshot every {} steps: one takes {:.1f} ms of processor time, a step {:.1f}"

KEPT = 32
"""Steps whose times are looked at."""

SHORTEST_S = 0.005
"""Of a shorter step, more than SHARE is spent on notes, some 0.05 ms each."""

SHORT = "a step takes {:.1f} ms, and what is noted of each would be more than 1 % of that"

ELSEWHERE = "another rank can take none"

NEVER = 0
"""Told as the step of the next snapshot: there is none. A step at which the clock is looked at
again is told with a minus."""


Work = tuple[float, float]
"""Processor time in seconds: that of training, and that of others for its snapshots."""


class Pace(Protocol):
    """The pace of one rank."""

    @property
    def waits(self) -> bool:
        """True if it is not yet time to get ready for the first one."""

    @property
    def over(self) -> str:
        """The reason why nobody takes any more, "" as long as they do."""

    @property
    def missed(self) -> int:
        """Snapshots that were due before this rank knew of them, since it began or came back."""

    def begins_at(self, step: int) -> None:
        """All ranks go on at this step: from its snapshot, or with a replica that came back."""

    def is_due(self, step: int, now: float) -> bool:
        """True if one is to be taken at the top of this step, at `now` in seconds."""

    def took(self, seconds: float, *, learning: bool) -> None:
        """Training stood still so long for a snapshot, at its top or its fence. One in which all is
        copied at once, to be `learning`, costs more than others.
        """

    def ends(self, why: str) -> None:
        """This rank takes none any more."""


class FixedPace:
    """Every `every` steps, from the `every`-th on."""

    waits, over, missed = False, "", 0

    def __init__(self, every: int) -> None:
        self._every = every

    def begins_at(self, step: int) -> None:
        """Steps are counted from the beginning of the run."""

    def is_due(self, step: int, now: float) -> bool:
        return step % self._every == 0

    def took(self, seconds: float, *, learning: bool) -> None:
        """A fixed pace stays as it is: it is the user's wish."""

    def ends(self, why: str) -> None:
        """The others take theirs in vain."""


class AutoPace:
    """A pace that costs at most SHARE of the time."""

    def __init__(
        self,
        tell: Callable[[int, int, str], None] | None,
        hear: Callable[[int], int | None],
        *,
        after_s: float = 0.0,
        give_up: Callable[[str], None] = lambda why: None,
        given_up: Callable[[], str] = lambda: "",
        worked: Callable[[], Work] | None = None,
    ) -> None:
        """On the rank that decides, `tell` says which snapshot follows that of a step, and why. The
        others `hear` it, None as long as it is not decided; if one of them takes none any more it
        says why (`give_up`), and the one that decides learns it (`given_up`). None is taken in the
        first `after_s` seconds, and if that is not 0 none where steps are too short. `worked` is
        the sum of all work so far, of which snapshots may take no more than SHARE, either.
        """
        self._tell = tell
        self._hear = hear
        self._after_s = after_s
        self._give_up, self._given_up = give_up, given_up
        self._first: float | None = None  # when the first step that it was asked of began
        self.waits = after_s > 0
        self.over = ""
        self.missed = 0
        self._newest = 0  # the step of the newest snapshot
        self._next = SOON
        self._heard = False  # of the next one, on a rank that does not decide
        self._every = 0  # as last decided
        self._began: float | None = None  # when the present step did
        self._copied = False  # a snapshot was taken in it
        self._stood_s = 0.0  # in it
        self._learning = False
        self._costs: deque[float] = deque(maxlen=KEPT)
        self._steps: deque[float] = deque(maxlen=KEPT)  # without a snapshot
        self._beside: deque[float] = deque(maxlen=KEPT)  # with one, what it stood still left out
        self._worked = worked
        self._known: tuple[int, Work] | None = None  # step and work, as last decided
        self._works: deque[Work] = deque(maxlen=KEPT)  # of a step, and for a snapshot

    def begins_at(self, step: int) -> None:
        self._newest, self._next, self._began, self.waits = step, step + SOON, None, False
        self.missed, self._heard = 0, False

    def is_due(self, step: int, now: float) -> bool:
        if self.over:
            return False
        self._note(now)
        if step == self._newest + 1 and self._tell is not None:
            following, why = self._decided(now)
            self._tell(self._newest, following, why)
            self._follow(following)
        if self._tell is None:
            self._ask(step)
        if step < self._next:
            return False
        self._newest, self._heard = step, False
        self._next = step + SOON
        self._copied = not self.waits
        return self._copied

    def _ask(self, step: int) -> None:
        """Learn of the one after the newest, if that is decided."""
        while not self._heard and step >= self._newest + 2:
            following = self._hear(self._newest)
            if following is None:
                self._next = sys.maxsize
                return
            self._follow(following)
            if self._next < step:
                self.missed += not self.waits
                self._newest, self._heard = self._next, False
                self._next = self._newest + SOON

    def _follow(self, following: int) -> None:
        self.waits, self._heard = following < 0, True
        self._next = abs(following)
        if following == NEVER:
            self.over, self._next = self.over or ELSEWHERE, sys.maxsize

    def ends(self, why: str) -> None:
        """The others would wait for what this rank decides, at the next snapshot if not now; also
        of one that ends before its first step.
        """
        if self.over:
            return
        self.over = why
        if self._tell is None:
            self._give_up(why)
            return
        for step in (self._newest, self._next):
            self._tell(step, NEVER, "")

    def took(self, seconds: float, *, learning: bool) -> None:
        self._stood_s += seconds
        self._learning |= learning

    def _note(self, now: float) -> None:
        """The step before is over."""
        if self._first is None:
            self._first = now
        if self._began is not None:
            spent = now - self._began - self._stood_s
            (self._beside if self._copied else self._steps).append(spent)
            if self._copied and not self._learning:
                self._costs.append(self._stood_s)
        self._began, self._copied, self._stood_s, self._learning = now, False, 0.0, False

    def _left_s(self, now: float) -> float:
        """Seconds until it is time for the first one."""
        return 0.0 if self._first is None else self._first + self._after_s - now

    def _decided(self, now: float) -> tuple[int, str]:
        """The step of the next snapshot, and why; "" if the pace stays what it was."""
        self.over = self._given_up()
        if self.over:
            return NEVER, ""
        self._note_work()
        if self.waits and (left_s := self._left_s(now)) > 0:
            step = median(self._steps) if self._steps else left_s
            ahead = min(math.ceil(left_s / step) if step > 0 else SOON, self._newest)
            return -(self._newest + max(SOON, ahead)), ""
        if self.waits and median(self._steps) < SHORTEST_S:
            self.over = SHORT.format(1000 * median(self._steps))
            return NEVER, ""
        if not self._costs or not self._steps:
            return self._newest + SOON, ""
        step, cost = median(self._steps), median(self._costs)
        slower = median(self._beside) - step
        spread = median(abs(one - step) for one in self._steps)
        if slower > spread:
            cost += slower
        every, known, why = _every(step, cost), self._every, SAID
        if self._works:
            trained, aside = (median(column) for column in zip(*self._works, strict=True))
            if _every(trained, aside) > every:
                every, step, cost, why = _every(trained, aside), trained, aside, WORK
        if known and known / CHANGE < every < known * CHANGE:
            return self._newest + known, ""
        self._every = every
        return self._newest + every, why.format(every, 1000 * cost, 1000 * step)

    def _note_work(self) -> None:
        """That since the last decision, if all of it belongs to snapshots as they usually are."""
        if self._worked is None:
            return
        (trained, aside), before = self._worked(), self._known
        self._known = self._newest, (trained, aside)
        if before is None or not self._costs or self._newest <= before[0]:
            return
        since, (trained_before, aside_before) = before
        each = (trained - trained_before) / (self._newest - since)
        self._works.append((each, max(0.0, aside - aside_before)))


def _every(step: float, cost: float) -> int:
    """Steps from one snapshot to the next so that its cost is SHARE of theirs."""
    return max(SOON, math.ceil(cost / (SHARE * step))) if step > 0 else SOON
