"""The lines between launchers of a simulated history: calls, what breaks them, what hosts answer.

Each launcher calls all others. What is said goes over the call of whoever says it, in order; word
of its end comes over the call of the other side, so it may be sooner there than its last words.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.engine import Engine

CLOSING_S = 0.02
"""A process that is killed loses its connections before it stops listening: by so much, often."""


@dataclass(slots=True)
class Lines:
    """`delay_s` is what a message takes, as a mean."""

    engine: Engine
    delay_s: float
    ended_at: dict[str, float] = field(default_factory=dict)
    refuses_at: dict[str, float] = field(default_factory=dict)
    _free_at: dict[tuple[str, str], float] = field(default_factory=dict)

    def send(self, sender: str, to: str, arrive: Callable[[], None]) -> None:
        """Have `arrive` called once what `sender` says is there; nothing is lost on the way."""
        if to in self.ended_at:
            return
        at = self.engine.now + 0.0002 + self.engine.jitter(self.delay_s)
        at = self._free_at[sender, to] = max(at, self._free_at.get((sender, to), 0.0))
        self.engine.at(at, arrive)

    def end(self, name: str) -> None:
        """Its process is killed: what it said before is on its way all the same."""
        now = self.engine.now
        self.ended_at[name] = now
        self.refuses_at[name] = now + self.engine.jitter(CLOSING_S)

    def up(self, callee: str) -> bool:
        """True if a call to it stands."""
        return callee not in self.ended_at

    def refused(self, callee: str) -> bool:
        """True if its host refuses connections by now."""
        return self.engine.now >= self.refuses_at.get(callee, float("inf"))
