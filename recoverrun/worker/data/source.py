"""Data sources: what gives the script items that depend on the rank, and the draws from it."""

from dataclasses import dataclass
from typing import Any, Protocol


class Source(Protocol):
    """Anything whose items depend on the rank: a loader's iterator, a generator of the script."""

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    def serve(self, rank: int, index: int) -> Any:
        """Item `index` as `rank` would have drawn it."""

    def seek(self, rank: int, index: int) -> None:
        """The next draw as `rank` is number `index`."""

    def forget(self, rank: int) -> None:
        """Drop what is kept for `rank`."""

    def begin_step(self, floor: int) -> None:
        """What was drawn before item `floor` belongs to a step that is over."""


@dataclass(slots=True, eq=False)
class Draw:
    """One item that the script took from a rank-dependent source."""

    source: Source
    index: int
    item: Any
    kept: Any = None  # by the source, as long as the item may be asked for
