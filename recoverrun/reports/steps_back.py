"""The snapshots in a journal: the newest safe one, and how often all ranks went back."""

from dataclasses import dataclass, field

from recoverrun.text import named_signals, plural, sanitize, span
from rendezvous.journal.reader import Entry


@dataclass(slots=True, kw_only=True)
class StepBack:
    """All ranks have gone back to the top of `step`."""

    ts: float
    attempt: int  # that began with it
    step: int
    again: int  # steps that are done again; -1: not known
    away_ms: float = -1.0  # from the loss until all stood there; -1: they do not yet
    state_ms: float = -1.0  # of that, for the state
    rebuilt: int = 0  # ranks whose parts came from other nodes
    why: str = ""  # all have gone back

    def __str__(self) -> str:
        if not self.attempt:
            return f"begun at step {self.step:,}, from a snapshot of a former run"
        return f"back to step {self.step:,}{_cost(self)}"


@dataclass(slots=True)
class StepsBack:
    """The ways back to snapshots in one run."""

    safe: int = -1  # the step of the newest safe snapshot
    safe_at: float = 0.0
    level: int = 0  # nodes of each group that may be lost where parity stands
    bare: bool = True  # it does not
    found: list[StepBack] = field(default_factory=list)
    keepers: int = 0  # that have ended before the job
    reasons: dict[int, str] = field(default_factory=dict)  # of attempts, why all began again

    def add(self, entry: Entry) -> None:
        """Take in one record."""
        step = entry.integer("step")
        match entry.event:
            case "snapshot.safe":
                self.safe, self.safe_at = step, entry.ts
                self.bare = entry.integer("parity") <= 0
                self.level = max(self.level, entry.integer("parity"))
            case "keeper.exit":
                self.keepers += 1
            case "snapshot.parity":
                self.bare = False
            case "job.restart":
                self.reasons[entry.integer("attempt")] = entry.reason
            case "snapshot.plan":
                self.bare = True
                attempt, again = entry.integer("attempt"), entry.integer("back")
                if not any(one.attempt == attempt for one in self.found):
                    why = sanitize(named_signals(self.reasons.get(attempt, "")))
                    self.found.append(
                        StepBack(ts=entry.ts, attempt=attempt, step=step, again=again, why=why)
                    )
            case "snapshot.restored":
                for one in self.found:
                    if one.attempt == entry.integer("attempt"):
                        one.away_ms = entry.number("away_ms")
                        one.state_ms = entry.number("state_ms")
                        rebuilt = entry.fields.get("rebuilt")
                        one.rebuilt = len(rebuilt) if isinstance(rebuilt, list) else 0

    def newest_line(self, now: float) -> str:
        """The line of `status` on what a loss would go back to; "" if there are no snapshots."""
        if self.safe < 0:
            return ""
        times = sum(1 for one in self.found if one.attempt)
        back = f", {plural(times, 'time')} back" if times else ""
        safe = f"step {self.safe:,} safe, {span(max(0.0, now - self.safe_at))} ago"
        return f"{safe}{self._survives()}{back}"

    def _survives(self) -> str:
        """The number of nodes that may be lost, where nodes make parity for each other."""
        if not self.level:
            return ""
        many = "no node" if self.bare else plural(self.level, "node")
        return f", {many} of each group may be lost{' (degraded)' if self.bare else ''}"


def _cost(one: StepBack) -> str:
    parts = [f"{plural(one.again, 'step')} done again"] if one.again >= 0 else []
    if one.rebuilt:
        parts.append(f"{plural(one.rebuilt, 'rank')} rebuilt by other nodes")
    if one.away_ms >= 0:
        parts.append(f"away {span(one.away_ms / 1000)}, of that {span(one.state_ms / 1000)} state")
    return f": {', '.join(parts)}" if parts else ""
