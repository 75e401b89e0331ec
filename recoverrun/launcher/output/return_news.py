"""The console lines about replicas that were started again: that they are back, or are not."""

from dataclasses import replace

from recoverrun.reports.history import History
from recoverrun.reports.returns import is_back
from recoverrun.text import named_signals
from rendezvous.journal.reader import Entry

FOLLOWED = frozenset({
    "worker.spawn", "worker.kill", "worker.exit", "topology.learn", "view.change", "replica.lost",
    "replica.start", "replica.ready", "replica.return", "replica.prove",
})  # fmt: skip
"""Records that show who is on the way back. All of them are rare."""


class ReturnNews:
    """Follows the records of one launcher, also those of which it only knows a part."""

    def __init__(self) -> None:
        self._facts = History()
        self._heard = 0

    def heard(self, entry: Entry, now: float) -> str:
        """The line that a record is worth at monotonic time `now` (seconds), or ""."""
        if entry.event not in FOLLOWED:
            return ""
        self._heard += 1
        entry = replace(entry, ts=now, seq=self._heard)
        known = len(self._facts.returns.backs)
        self._facts.add(entry)
        returns = self._facts.returns
        if entry.event == "replica.prove" and len(returns.backs) > known:
            place = entry.integer("slot"), entry.integer("step")
            return f"✓ {is_back(returns.at(*place))}"
        if entry.event == "worker.exit" and returns.failed(entry) is not None:
            return f"! {named_signals(entry.reason)}, before it took part again"
        return ""
