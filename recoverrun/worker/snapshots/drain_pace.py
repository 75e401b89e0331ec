"""One snapshot more, as soon as all ranks can take it: the job is about to be ended.

Each rank is told so at a time of its own. Rank 0 names a step that is LEAD steps ahead, and the
others look for what it has named, at each top from when they were told; ranks that reduce
gradients together cannot be two steps apart. Whoever was told too late takes no part in that one:
it never gets whole, and rank 0 names another, twice as far ahead. Training goes on meanwhile.
"""

from collections.abc import Callable

from recoverrun.worker.snapshots.pace import Pace

LEAD = 3


class DrainPace:
    """Implements `Pace` over another one."""

    def __init__(
        self,
        usual: Pace,
        *,
        drains: Callable[[], bool],
        alone: bool,
        tell: Callable[[int], None] | None,
        look: Callable[[], int],
    ) -> None:
        """`drains` is true once this rank was told. The one that decides can `tell` the others a
        step; they `look` for it, -1 as long as there is none. `alone`: there are no others.
        """
        self._usual = usual
        self._drains = drains
        self._tell = tell
        self._look = look
        self._lead = 0 if alone else LEAD
        self._named = -1

    @property
    def waits(self) -> bool:
        """True if it is not yet time to get ready for the first one."""
        return self._usual.waits

    @property
    def over(self) -> str:
        """The reason why nobody takes any more, "" as long as they do."""
        return self._usual.over

    @property
    def missed(self) -> int:
        """Snapshots of the usual pace that were due before this rank knew of them."""
        return self._usual.missed

    def ends(self, why: str) -> None:
        """This rank takes none any more."""
        self._usual.ends(why)

    def begins_at(self, step: int) -> None:
        """All ranks go on at this step: from its snapshot, or with a replica that came back."""
        self._usual.begins_at(step)

    def is_due(self, step: int, now: float) -> bool:
        """True if one is to be taken at the top of this step, at `now` in seconds."""
        usual = self._usual.is_due(step, now)
        if not self._drains():
            return usual
        if self._tell is None:
            self._named = self._look()
        elif self._named < step:
            self._named = step + self._lead
            self._lead *= 2
            self._tell(self._named)
        return usual or step == self._named

    def took(self, seconds: float, *, learning: bool) -> None:
        """Training stood still so long."""
        self._usual.took(seconds, learning=learning)
