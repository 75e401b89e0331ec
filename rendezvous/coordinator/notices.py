"""Findings of ranks, each written down once.

All ranks run the same code, so most find the same thing in the same step, and each of them says it:
one that spoke for all could be lost before its word is sent.
"""

from rendezvous.protocol.messages import UNSAID, Notice
from rendezvous.protocol.records import Record

KEPT = 256
"""Sentences that are remembered: ranks that say the same do so within a step of one another."""


class Notices:
    """The notices of one job that were written down."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], int] = {}  # event and reason -> who said it first

    def record(self, notice: Notice) -> Record | None:
        """The journal's line; None if another rank has said the same, or a reason is known where
        this one knows none.
        """
        key = (notice.event, notice.reason)
        if self._first.get(key, notice.rank) != notice.rank:
            return None
        if notice.reason.endswith(UNSAID) and any(
            event == notice.event for event, _ in self._first
        ):
            return None
        self._first[key] = notice.rank
        if len(self._first) > KEPT:
            del self._first[next(iter(self._first))]
        return Record("notice.give", notice.reason, {"rank": notice.rank, "event": notice.event})
