"""The time for which a rank may keep others waiting: learned from the run itself, phase by phase.

A limit for all phases takes checkpoints and first batches for hangs (dlrover #1727, FlagScale
#1267). So each phase has its own history of lags, of all ranks: a rank that came late, and came,
raises the limit of its phase. A lag is the time for which a rank stood still and was waited for.
"""

from collections import deque
from statistics import median

from rendezvous.protocol.progress_page import Phase

LEAST_S = 5.0
"""In phases that every step passes."""

UNSEEN_S = 60.0
"""In phases in which anything may happen for the first time: evaluation, a checkpoint."""

STEPS, UNSEEN_STEPS = 3, 20
"""As many of the usual steps are waited for at least."""

TIMES = 3.0
"""A lag may be so many times as long as the longest of its phase."""

KEPT_STEPS = 64
"""In phases that every step passes, lags of so many steps are remembered; in others all."""

USUAL = 33
"""The usual step is the median of so many."""

EVERY_STEP = frozenset({Phase.MICROBATCH, Phase.DATA, Phase.SETTLE})


class HangLimits:
    """The limits in seconds, by phase."""

    def __init__(self) -> None:
        self._lags: dict[Phase, deque[tuple[int, float]]] = {}  # (step, lag)
        self._steps: deque[float] = deque(maxlen=USUAL)
        self._step_s = 0.0  # the usual one
        self._step = 0
        self._stepped_at: float | None = None

    def stepped(self, step: int, now: float) -> None:
        """A step is over."""
        if step <= self._step:
            return
        if self._stepped_at is not None and step == self._step + 1:
            self._steps.append(now - self._stepped_at)
            self._step_s = median(self._steps)
        self._step, self._stepped_at = step, now

    def came(self, phase: Phase, lag_s: float) -> None:
        """A rank kept others waiting for so long, and came."""
        lags = self._lags.setdefault(phase, deque())
        if phase not in EVERY_STEP:
            lag_s = max(lag_s, *(lag for _, lag in lags), 0.0)
            lags.clear()
        while lags and lags[0][0] < self._step - KEPT_STEPS:
            lags.popleft()
        lags.append((self._step, lag_s))

    def limit_s(self, phase: Phase) -> float:
        """The time for which a rank may stand still in `phase` while others wait for it."""
        regular = phase in EVERY_STEP
        usual_s = UNSEEN_STEPS * self._step_s
        least_s = self.stopped_s if regular else max(UNSEEN_S, usual_s)
        longest_s = max((lag_s for _, lag_s in self._lags.get(phase, ())), default=0.0)
        return max(least_s, TIMES * longest_s)

    @property
    def stopped_s(self) -> float:
        """The time for which a process may be stopped while others wait for it."""
        return max(LEAST_S, STEPS * self._step_s)
