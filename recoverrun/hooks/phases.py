"""What a rank says of a step beside what is in it: how long its parts took, and a digest.

The machines know no clock; this does.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rendezvous.messages import Committed


class Phases:
    """Milliseconds by name, since the last commit."""

    def __init__(self) -> None:
        self._ms: dict[str, float] = {}
        self._committed_at = time.monotonic()
        self.digest = ""  # of the step that is about to be committed

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count what is within, if it does not raise."""
        started = time.monotonic()
        yield
        self._ms[name] = self._ms.get(name, 0.0) + 1000 * (time.monotonic() - started)

    def note(self, name: str, ms: float) -> None:
        self._ms[name] = ms

    def complete(self, committed: Committed) -> Committed:
        """The statement with its phases; the next step's begin."""
        now = time.monotonic()
        self.note("step", 1000 * (now - self._committed_at))
        self._committed_at = now
        phases, self._ms = self._ms, {}
        return replace(committed, phases=tuple(sorted(phases.items())), digest=self.digest)
