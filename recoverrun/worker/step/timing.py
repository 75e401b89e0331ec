"""The time that a rank spent in each part of a step, beside the machines, which know no clock."""

import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType

from rendezvous.protocol.messages import Committed

SHOWN_MS = 0.1
"""Work of the script beside the step that took less is not reported."""


class StepTiming:
    """Milliseconds by name, since the last commit."""

    def __init__(self) -> None:
        self._ms: dict[str, float] = {}
        self._committed_at = time.monotonic()
        self.digest = ""  # of the step that is about to be committed

    def starts(self) -> None:
        """The first step of a process that takes a lost rank's place begins."""
        self._committed_at = time.monotonic()

    def measure(self, name: str) -> "_Measure":
        """A block whose duration is added under `name`, unless it raises."""
        return _Measure(self, name)

    def add(self, name: str, ms: float) -> None:
        self._ms[name] = self._ms.get(name, 0.0) + ms

    def note(self, name: str, ms: float) -> None:
        self._ms[name] = ms

    def complete(self, committed: Committed, spent_ms: Mapping[str, float]) -> Committed:
        """`committed` with the times of its parts and with `spent_ms`; the next step begins."""
        now = time.monotonic()
        self.note("step", 1000 * (now - self._committed_at))
        self._committed_at = now
        timing, self._ms = self._ms | {k: ms for k, ms in spent_ms.items() if ms >= SHOWN_MS}, {}
        return replace(committed, phases=tuple(sorted(timing.items())), digest=self.digest)


class _Measure:
    """A class, not a generator under `contextmanager`: it is entered twice a step."""

    __slots__ = ("_name", "_started", "_timing")

    def __init__(self, timing: StepTiming, name: str) -> None:
        self._timing = timing
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
            self._timing.add(self._name, 1000 * (time.monotonic() - self._started))
