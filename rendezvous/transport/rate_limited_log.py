"""The log of what strangers and broken peers do: counted, and never more than one line a minute.

Whoever sends garbage sends much of it, and a log that an attacker can fill is a fault of its own.
The first of a kind is told at once, the rest as a number.
"""

from dataclasses import dataclass

QUIET_S = 60.0
"""Between two lines of the same kind."""

KINDS = 64
"""Kinds that are told apart; all others are one more kind."""

OTHERS = "messages or connections of other kinds were refused"


@dataclass(slots=True)
class _Kind:
    untold: int
    tell_at: float


class RateLimitedLog:
    """Counts what is refused; `due` returns the sentences that are to be written now."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self.total = 0

    def note(self, words: str, now: float) -> None:
        """Something was refused: `words` are a sentence without a number in it."""
        self.total += 1
        if words not in self._kinds and len(self._kinds) >= KINDS:
            words = OTHERS
        kind = self._kinds.setdefault(words, _Kind(0, now))
        kind.untold += 1

    def due(self, now: float) -> list[str]:
        lines = []
        for words, kind in self._kinds.items():
            if kind.untold and now >= kind.tell_at:
                times = f" ({kind.untold} times)" if kind.untold > 1 else ""
                lines.append(f"{words}{times}")
                kind.untold, kind.tell_at = 0, now + QUIET_S
        return lines
