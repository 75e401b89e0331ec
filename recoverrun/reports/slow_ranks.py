"""Ranks that made all others wait, in each step of a while, as the journal tells it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from recoverrun.reports.standing_still import KINDS
from recoverrun.text import span
from rendezvous.journal.reader import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """`from_step`: where it was named; `until_step`: where it was as fast as others again, -1: it
    was not, or was lost before.
    """

    rank: int
    from_step: int
    until_step: int
    lag_ms: float  # of each step
    kind: str

    @property
    def words(self) -> str:
        """One line for people."""
        until = f"until step {self.until_step}" if self.until_step >= 0 else "on"
        late, why = span(self.lag_ms / 1000), KINDS.get(self.kind, KINDS["compute"])
        return (
            f"rank {self.rank} slowed each step by {late} from step {self.from_step} {until}: {why}"
        )


@dataclass(slots=True)
class SlowRanks:
    """Follows a journal; `found` is in the order in which they were named."""

    found: list[SlowRank] = field(default_factory=list)
    _now: dict[int, int] = field(default_factory=dict)  # rank -> place in `found`, while it is slow

    def take(self, entry: Entry) -> None:
        rank, step = entry.integer("rank"), entry.integer("step")
        match entry.event:
            case "straggler.find" if rank not in self._now:  # after a takeover it is named again
                self._now[rank] = len(self.found)
                self.found.append(
                    SlowRank(
                        rank=rank,
                        from_step=step,
                        until_step=-1,
                        lag_ms=entry.number("lag_ms"),
                        kind=entry.text("kind"),
                    )
                )
            case "straggler.clear" if rank in self._now:
                place = self._now.pop(rank)
                self.found[place] = replace(self.found[place], until_step=step)
            case "replica.lost":
                for lost in entry.integers("ranks"):
                    self._now.pop(lost, None)
            case "job.restart":
                self._now.clear()
            case _:
                pass


def slow_ranks(entries: Iterable[Entry]) -> tuple[SlowRank, ...]:
    """The slow ranks of a run, in the order in which they were named."""
    slow = SlowRanks()
    for entry in entries:
        slow.take(entry)
    return tuple(slow.found)
