"""The console lines about a disk that does not take the journal: at the beginning, and at the end.

Training goes on meanwhile, so there is one line for each, however long it lasts. A disk that first
was slow, and then has an error, has another one for that.
"""

from recoverrun.text import plural, span
from rendezvous.journal.lines import Missing, joined

REMOVED = (
    "! the run directory was removed, or this node's journal in it: no more records are kept; "
    "training goes on"
)
REFUSAL = "! this node's journal cannot be written"


class JournalNews:
    """Follows one journal. Pure: it is told what there is, and returns what to say."""

    def __init__(self) -> None:
        self._since: float | None = None  # of the trouble that was told
        self._missing: Missing | None = None  # since then
        self._removed = False
        self._named = False  # the trouble that was told is an error of the disk

    def removed(self) -> str:
        """The line to say, or "": nobody finds the journal any more."""
        said, self._removed = self._removed, True
        return "" if said else REMOVED

    def heard(self, trouble: str, missed: Missing | None, *, behind: int, now: float) -> str:
        """The line to say, or "". `missed` is new, `behind` counts lines that wait."""
        if missed is not None:
            self._missing = joined(self._missing, missed)
        if self._since is None:
            if not trouble and self._missing is None:
                return ""
            self._since, self._named = now, bool(trouble)
            return f"{REFUSAL}: {trouble or 'the disk is too slow'}; training goes on"
        if trouble and not self._named:
            self._named = True
            return f"{REFUSAL}: {trouble}; training goes on"
        if trouble or behind:
            return ""
        return self._over(now - self._since)

    def ended(self, trouble: str, missed: Missing | None, *, left: int, now: float) -> str:
        """The last line, or "": `left` lines were given up."""
        if missed is not None:
            self._missing = joined(self._missing, missed)
        if left:
            return (
                f"{REFUSAL}: {trouble or 'the disk is too slow'}; {plural(left, 'record')} given up"
            )
        if self._since is not None and not trouble:
            return self._over(now - self._since)
        why = f" ({trouble})" if trouble else ""
        lost = self._missing
        return f"! this node's journal is not whole: {_lost(lost)}{why}" if lost else ""

    def _over(self, lasted_s: float) -> str:
        lost = _lost(self._missing)
        self._since, self._missing = None, None
        after = span(lasted_s)
        return f"! this node's journal is written again, after {after}: {lost}"


def _lost(missing: Missing | None) -> str:
    if missing is None:
        return "nothing is missing"
    since = f", from step {missing.step} on" if missing.step >= 0 else ""
    return f"{plural(missing.records, 'record')} missing{since}"
