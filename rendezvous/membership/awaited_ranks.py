"""The ranks that others wait for, since when and until when.

Waits are put together by the members of their operations, of which there are few: thousands of
ranks may wait for thousands.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from rendezvous.membership.hang_events import Still
from rendezvous.protocol.progress_page import NO_LIMIT_MS, spread


@dataclass(slots=True)
class _Waits:
    """For the same members; None: for anybody."""

    members: range | None
    what: str  # the first of them waits for
    ranks: list[int] = field(default_factory=list)  # that wait
    since: float = inf
    ends: float = inf


class AwaitedRanks:
    """The awaited ranks, by what `waiting` ranks tell."""

    def __init__(self, waiting: Mapping[int, Still]) -> None:
        together: dict[tuple[int, int, int], _Waits] = {}
        for rank, still in sorted(waiting.items()):
            mark = still.mark
            waits = together.get(mark.ranks)
            if waits is None:
                waits = together[mark.ranks] = _Waits(spread(mark.ranks), mark.what)
            waits.ranks.append(rank)
            waits.since = min(waits.since, still.since)
            if mark.limit_ms != NO_LIMIT_MS:
                waits.ends = min(waits.ends, still.since + mark.limit_ms / 1000)
        self._together = tuple(together.values())

    def since(self, rank: int) -> float | None:
        """Since when somebody waits for `rank`, which does not wait itself; None: nobody does."""
        return min((waits.since for waits in self._for(rank)), default=None)

    def ends(self, rank: int) -> float:
        """The time at which the first wait for it ends by the script's own limit."""
        return min((waits.ends for waits in self._for(rank)), default=inf)

    def by(self, rank: int) -> tuple[int, ...]:
        """The ranks that wait for it."""
        found = [waits.ranks for waits in self._for(rank)]
        return tuple(found[0] if len(found) == 1 else sorted(chain.from_iterable(found)))

    def what(self, rank: int) -> str:
        """The operation that the first of those that wait for it waits for."""
        return min((waits.ranks[0], waits.what) for waits in self._for(rank))[1]

    def _for(self, rank: int) -> Iterator[_Waits]:
        return (waits for waits in self._together if waits.members is None or rank in waits.members)
