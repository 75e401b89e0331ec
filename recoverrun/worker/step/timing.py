"""The times of a rank's parts of a step, and its digest.

The machines know no clock; this does.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType

from rendezvous.protocol.messages import Committed

SHOWN_MS = 0.1
"""Of what the script did besides, less is not told."""


class StepTiming:
    """Milliseconds by name, since the last commit."""

    def __init__(self) -> None:
        self._ms: dict[str, float] = {}
        self._committed_at = time.monotonic()
        self.digest = ""  # of the step that is about to be committed

    def starts(self) -> None:
        """The first step of this process begins, which is not the first of the run."""
        self._committed_at = time.monotonic()

    def measure(self, name: str) -> "_Measure":
        """Count what is within, if it does not raise."""
        return _Measure(self, name)

    def add(self, name: str, ms: float) -> None:
        self._ms[name] = self._ms.get(name, 0.0) + ms

    def note(self, name: str, ms: float) -> None:
        self._ms[name] = ms

    def complete(self, committed: Committed, spent_ms: Mapping[str, float]) -> Committed:
        """The statement with its phases, those of `spent_ms` among them; the next step's begin."""
        now = time.monotonic()
        self.note("step", 1000 * (now - self._committed_at))
        self._committed_at = now
        timing, self._ms = self._ms | {k: ms for k, ms in spent_ms.items() if ms >= SHOWN_MS}, {}
        return replace(committed, phases=tuple(sorted(timing.items())), digest=self.digest)


class _Measure:
    """A class, not a generator under `contextmanager`: it is entered twice a step."""

    __slots__ = ("_name", "_phases", "_started")

    def __init__(self, timing: StepTiming, name: str) -> None:
        self._phases = timing
        self._name = name

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._phases.add(self._name, 1000 * (time.monotonic() - self._started))
