"""Ranks that others wait for just now, as the journal tells it: suspected, or slow in each step."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from recoverrun.text import sanitize, span
from rendezvous.journal.reader import Entry

KINDS = {
    "throttled": "held back by the CPU limit of its cgroup",
    "cpu": "waiting for a CPU that others have",
    "data": "fetching data",
    "alone": "work that it does alone",
    "checkpoint": "checkpoints",
    "compute": "computing",
}


@dataclass(slots=True)
class StandingStill:
    """The ranks that stand still in one run; `take` its records in the order of the journal."""

    _suspects: dict[int, str] = field(default_factory=dict)
    _slow: dict[int, str] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        """One record; most say nothing of it."""
        rank = entry.integer("rank")
        match entry.event:
            case "hang.suspect":
                at = sanitize(entry.text("phase"), 40).replace("_", " ")
                waited = span(entry.number("lag_s"))
                self._suspects[rank] = f"rank {rank} keeps others waiting, {waited} so far ({at})"
            case "hang.clear" | "hang.condemn":
                self._suspects.pop(rank, None)
            case "straggler.find":
                kind = KINDS.get(entry.text("kind"), "computing")
                late = span(entry.number("lag_ms") / 1000)
                self._slow[rank] = f"rank {rank} slows each step by {late}: {kind}"
            case "straggler.clear":
                self._slow.pop(rank, None)
            case "replica.lost":
                for lost in entry.integers("ranks"):
                    self._suspects.pop(lost, None)
                    self._slow.pop(lost, None)
            case "job.restart" | "run.end":
                self._suspects.clear()
                self._slow.clear()
            case "leader.succeed":
                self._slow.clear()  # Who is slow still is named again.

    def of(self, ranks: Iterable[int]) -> str:
        """The words about the first of these ranks, suspicions first; "" if there are none."""
        members = tuple(ranks)
        known = (one for one in (self._suspects, self._slow))
        said = (one[rank] for one in known for rank in members if rank in one)
        return next(said, "")
