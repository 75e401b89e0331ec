"""Ranks that made all others wait, in each step of a while, as the journal tells it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

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


def slow_ranks(entries: Iterable[Entry]) -> tuple[SlowRank, ...]:
    """The slow ranks in the order in which they were named."""
    found: list[SlowRank] = []
    now: dict[int, int] = {}  # rank -> place in `found`, while it is slow
    for entry in entries:
        rank, step = entry.integer("rank"), entry.integer("step")
        match entry.event:
            case "straggler.find" if rank not in now:  # after a takeover it is named again
                now[rank] = len(found)
                found.append(
                    SlowRank(
                        rank=rank,
                        from_step=step,
                        until_step=-1,
                        lag_ms=entry.number("lag_ms"),
                        kind=entry.text("kind"),
                    )
                )
            case "straggler.clear" if rank in now:
                place = now.pop(rank)
                found[place] = replace(found[place], until_step=step)
            case "replica.lost":
                for lost in entry.integers("ranks"):
                    now.pop(lost, None)
            case "job.restart":
                now.clear()
            case _:
                pass
    return tuple(found)
