"""Weak references to data sources: they live no longer than the script keeps them."""

import weakref
from typing import Any

from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.source import Source
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import Streams


class WeakSource:
    """A weak reference to a source; once the source is gone, it counts as ended.

    A script may make an iterator for one evaluation and drop it. Then its worker processes must
    end.
    """

    def __init__(self, source: Source) -> None:
        self._source = weakref.ref(source)
        self.number = source.number

    @property
    def held(self) -> Source | None:
        return self._source()

    def _alive(self) -> Source:
        source = self._source()
        if source is None:
            raise NotReplayable(f"data iterator {self.number} of the script is gone")
        return source

    @property
    def gone(self) -> bool:
        return self._source() is None

    @property
    def ended(self) -> bool:
        source = self._source()
        return source is None or source.ended

    @property
    def count(self) -> int:
        source = self._source()
        return 0 if source is None else source.count

    @property
    def moved(self) -> tuple[Streams, Streams] | None:
        source = self._source()
        return None if source is None else source.moved

    @property
    def origin(self) -> Origin:
        """The origin of a loader's iterator. Raises AttributeError for other sources."""
        origin: Origin = getattr(self._alive(), "origin")  # noqa: B009
        return origin

    def serve(self, rank: int, index: int) -> Any:
        return self._alive().serve(rank, index)

    def seek(self, rank: int, index: int) -> None:
        source = self._source()
        if source is not None:
            source.seek(rank, index)

    def forget(self, rank: int) -> None:
        source = self._source()
        if source is not None:
            source.forget(rank)

    def begin_step(self, floor: int) -> None:
        source = self._source()
        if source is not None:
            source.begin_step(floor)
