"""The rate of a peer's clock by ours, from messages that go to and fro. Pure.

A word is said at one instant of our clock, the peer stamps it, and the answer is heard at another:
when the peer stamped it lies between the two. Two such words that are far enough apart give bounds
for the rate, however long each was on its way: a slow network or a busy machine widens them, and
accuses nobody.
"""

from dataclasses import dataclass, field

SPAN_S = 2.0
"""So far apart are the first and the last word that are compared."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of our clock for one of the peer's, at least and at most."""

    least: float
    most: float


@dataclass(slots=True)
class ClockRate:
    """Our book of one peer. All instants are seconds of a clock that nobody sets."""

    _first: list[tuple[float, float, float]] = field(default_factory=list)
    _rate: Rate | None = None

    def hear(self, said_s: float, stamped_s: float, heard_s: float) -> None:
        """We said a word at `said_s`, the peer stamped it at `stamped_s`, and we heard that at
        `heard_s`. Instants that cannot be are left out.
        """
        if heard_s < said_s:
            return
        for first_said_s, first_stamped_s, first_heard_s in self._first:
            passed_s = stamped_s - first_stamped_s
            if said_s - first_heard_s < SPAN_S or passed_s <= 0:
                continue
            known = self._rate or Rate(0.0, float("inf"))
            self._rate = Rate(
                max(known.least, (said_s - first_heard_s) / passed_s),
                min(known.most, (heard_s - first_said_s) / passed_s),
            )
        if self._rate is None:
            self._first.append((said_s, stamped_s, heard_s))

    @property
    def rate(self) -> Rate | None:
        """None until words are far enough apart."""
        return self._rate
