"""The origin of a data iterator: the state in which a rank created it, as plain values.

A shuffling loader takes its order from the random streams, or from a generator of its own, when its
iterator is created or first asked. Every rank tells the others these states, and which rows of the
data set it goes through (`subset_rows`). That is enough to create the iterator as that rank.

The origin of an iterator that is made after a rank was lost is derived from iterators that both
ranks made before: the same loader goes through the same rows again, and its generator has moved as
far as ours, if both go through equally many rows. What cannot be derived is None, and an iterator
that needs it is not served.
"""

import itertools
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from recoverrun.worker.data.rank_substitution import RankPlace, rank_places
from recoverrun.worker.data.subset_rows import (
    SubsetRows,
    apply_rows,
    pack_rows,
    subset_rows_of,
    unpack_rows,
)
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.skip_ahead import draws_between, skip_draws
from recoverrun.worker.rng.streams import CPU_BYTES, Streams

T = TypeVar("T")

UNKNOWN = (
    "a lost rank never made one of this rank's data iterators, and {} cannot be derived from those "
    "that it made"
)
KEPT_PAIRS = 32

_PHASE = slice(8, 12)
"""Where the state of torch's CPU generator holds its position in the words."""

# Mutable: loaders are numbered as they are first seen, in this process only.
_numbers = itertools.count()
_loaders: "weakref.WeakKeyDictionary[DataLoader[Any], int]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Origin:
    """The state in which one iterator was created."""

    streams: Streams | None
    generators: tuple[bytes, ...] | None = ()  # states: the loader's and its samplers'
    subset_rows: tuple[SubsetRows, ...] | None = ()
    rows: int = -1  # number of rows in a pass; only if generators decide their order
    rank_places: tuple[RankPlace, ...] | None = ()
    loader: int = field(default=-1, compare=False)  # its number in this process

    @staticmethod
    def of(
        loader: "DataLoader[Any]", streams: Streams | None, generators: Iterable[bytes]
    ) -> "Origin":
        states = tuple(generators)
        return Origin(
            streams=streams,
            generators=states,
            subset_rows=subset_rows_of(loader),
            rows=_rows_of(loader) if states else -1,
            rank_places=rank_places(loader),
            loader=_loaders.setdefault(loader, next(_numbers)),
        )

    def apply_rows(self, clone: "DataLoader[Any]") -> None:
        """Let `clone` go through the rank's rows. Raises NotReplayable."""
        if self.subset_rows is None:
            raise NotReplayable(UNKNOWN.format("the rows of the data set that it goes through"))
        apply_rows(clone, self.subset_rows)

    def require_generators(self) -> tuple[bytes, ...]:
        """Raises NotReplayable."""
        if self.generators is None:
            raise NotReplayable(UNKNOWN.format("where the loader's own generator stands"))
        return self.generators

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        return [
            None if self.streams is None else self.streams.pack(),
            None if self.generators is None else list(self.generators),
            None if self.subset_rows is None else pack_rows(self.subset_rows),
            self.rows,
            None if self.rank_places is None else [list(place) for place in self.rank_places],
        ]

    @staticmethod
    def unpack(packed: list[Any]) -> "Origin":
        """Raises ValueError if `packed` is not what `pack` makes."""
        streams, generators, subset_rows, rows, places = packed
        if type(rows) is not int or any(type(state) is not bytes for state in generators or ()):
            raise ValueError("not the origin of an iterator")
        return Origin(
            streams=None if streams is None else Streams.unpack(streams),
            generators=None if generators is None else tuple(generators),
            subset_rows=None if subset_rows is None else unpack_rows(subset_rows),
            rows=rows,
            rank_places=None if places is None else _unpacked(places),
        )

    def require_rank_places(self, own: "Origin", *ranks: int) -> None:
        """Raises NotReplayable if a sampler of ours carries another rank than these, and what the
        lost rank carries there is unknown. `ranks`: ours, and the one that is executed, if it is as
        that rank that we made the iterator.
        """
        moved = any(count != 1 and rank not in ranks for count, rank in own.rank_places or ())
        if self.rank_places is None and moved:
            raise NotReplayable(UNKNOWN.format("for which rank its sampler stands"))

    def places_for(self, own: "Origin") -> dict[RankPlace, int]:
        """Return which rank this origin carries for each place that `own` has."""
        if (
            self.rank_places is None
            or own.rank_places is None
            or len(self.rank_places) != len(own.rank_places)
        ):
            return {}
        theirs = [carried for _, carried in self.rank_places]
        return dict(zip(own.rank_places, theirs, strict=True))


def advanced_generators(
    theirs: tuple[bytes, ...], before: tuple[bytes, ...], after: tuple[bytes, ...]
) -> tuple[bytes, ...] | None:
    """Return states of a lost rank's generators moved on as far as ours; None if unknown."""
    if theirs == before:
        return after
    if not len(theirs) == len(before) == len(after):
        return None
    moved = [_advanced(*three) for three in zip(theirs, before, after, strict=True)]
    known = tuple(state for state in moved if state is not None)
    return known if len(known) == len(moved) else None


def _advanced(theirs: bytes, before: bytes, after: bytes) -> bytes | None:
    if before == after:
        return theirs
    if len(theirs) != CPU_BYTES:
        return None
    draws = draws_between(before, after)
    return None if draws is None else skip_draws(theirs, draws)


class OriginPairs:
    """Origins of a lost rank's iterators, each with the origin of ours of the same number."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Origin, Origin]] = {}
        self._places: dict[RankPlace, int] = {}  # the rank that it carries for a place of ours

    def learn(self, theirs: Mapping[int, Origin], mine: Mapping[int, Origin]) -> None:
        """Add origins, given by number. Those from which nothing can be derived are not kept."""
        for number in sorted(theirs.keys() & mine.keys() - self._pairs.keys()):
            self._places |= theirs[number].places_for(mine[number])
            if mine[number].generators or mine[number].subset_rows:
                self._pairs[number] = theirs[number], mine[number]
        while len(self._pairs) > KEPT_PAIRS:
            del self._pairs[next(iter(self._pairs))]

    def derive(self, own: Origin, streams: Streams | None, *, acting: bool = False) -> Origin:
        """Derive the origin of an iterator that we made at `own` and the lost rank never made.

        Where ranks never differed, they are taken not to differ now. `acting`: we made it as that
        rank.
        """
        return Origin(
            streams=streams,
            generators=self._generators(own) if own.generators else own.generators,
            subset_rows=self._rows(own) if own.subset_rows else own.subset_rows,
            rows=own.rows,
            rank_places=self._places_like(own, acting),
        )

    def _places_like(self, own: Origin, acting: bool) -> tuple[RankPlace, ...] | None:
        """A loader that is made anew carries the ranks that the loaders before it carried. As the
        rank is executed its samplers may carry these already; if one of ours carries them where we
        are ourselves, the script has given samplers other ranks, and the lost one's is unknown.
        """
        mine, theirs = own.rank_places or (), self._places
        if acting:
            theirs = {(count, rank): rank for (count, _), rank in theirs.items()} | theirs
        if not all(place in theirs for place in mine):
            return None
        return tuple((place[0], theirs[place]) for place in mine)

    def _generators(self, own: Origin) -> tuple[bytes, ...] | None:
        """Ranks with different numbers of rows draw different numbers in a pass."""
        pairs = [pair for pair in self._pairs.values() if pair[1].generators]
        alike = all(theirs.rows == mine.rows for theirs, mine in pairs)
        if alike and all(theirs.generators == mine.generators for theirs, mine in pairs):
            return own.generators
        states = [_moved(*pair, own) for pair in _nearest(own, pairs)]
        return _agreed([known for known in states if known is not None])

    def _rows(self, own: Origin) -> tuple[SubsetRows, ...] | None:
        pairs = [pair for pair in self._pairs.values() if pair[1].subset_rows]
        if all(theirs.subset_rows == mine.subset_rows for theirs, mine in pairs):
            return own.subset_rows
        near = _nearest(own, pairs)
        return _agreed(
            [theirs.subset_rows for theirs, mine in near if mine.subset_rows == own.subset_rows]
        )


def _unpacked(places: Any) -> tuple[RankPlace, ...]:
    numbers = isinstance(places, list) and all(
        isinstance(place, list) and [type(part) for part in place] == [int, int] for place in places
    )
    if not numbers:
        raise ValueError(f"no places: {places!r}")
    return tuple((count, rank) for count, rank in places)


def _nearest(own: Origin, pairs: list[tuple[Origin, Origin]]) -> list[tuple[Origin, Origin]]:
    """Return the pairs of the same loader, or all pairs if there is none of it."""
    return [pair for pair in pairs if pair[1].loader == own.loader] or pairs


def _agreed(values: list[T]) -> T | None:
    """Return the value if there is one and all are equal, else None."""
    return values[0] if values and all(value == values[0] for value in values) else None


def _moved(theirs: Origin, mine: Origin, own: Origin) -> tuple[bytes, ...] | None:
    """Return generators at `own`, if both ranks drew equally often from them and go on so."""
    if not theirs.generators or not mine.generators or not own.generators:
        return None
    if not theirs.rows == mine.rows == own.rows:
        return None
    if any(
        states[0][_PHASE] != states[1][_PHASE]
        for states in zip(theirs.generators, mine.generators, strict=False)
    ):
        return None
    return advanced_generators(theirs.generators, mine.generators, own.generators)


def _rows_of(loader: "DataLoader[Any]") -> int:
    try:
        return len(loader.sampler)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return -1
