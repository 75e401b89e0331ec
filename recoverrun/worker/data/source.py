"""Data sources: what gives the script items that depend on the rank, and the draws from it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # it imports torch, which the script imports when it wants to
    from recoverrun.worker.rng.streams import Streams


class Source(Protocol):
    """A data source: its items depend on the rank, as those of a loader's iterator do."""

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    @property
    def moved(self) -> "tuple[Streams, Streams] | None":
        """The streams before and after the last item, if a generator has asked for it, and if that
        is known.
        """

    def serve(self, rank: int, index: int) -> Any:
        """Return item `index` as `rank` would have drawn it. Raises NotReplayable."""

    def seek(self, rank: int, index: int) -> None:
        """Let the next draw as `rank` be item `index`."""

    def forget(self, rank: int) -> None:
        """Drop what is kept for `rank`."""

    def begin_step(self, floor: int) -> None:
        """Forget items before `floor`: they belong to steps that are over."""


class RankAware:
    """Base of the iterators that know who is asking: they answer each rank by themselves."""

    __slots__ = ()
    moved: "tuple[Streams, Streams] | None" = None


@dataclass(slots=True, eq=False)
class Draw:
    """One item that the script took from a rank-dependent source."""

    source: Source
    index: int
    item: Any
    kept: Any = None  # what the source needs as long as the item may be asked for
