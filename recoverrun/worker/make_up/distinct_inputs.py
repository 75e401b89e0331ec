"""The expectation that ranks train on different data, as they always have in this run.

A rank's share of the data may come to depend on something that nobody sees. Then a survivor that
executes the lost rank's microbatch reads its own share, or that of another rank, and nothing in the
execution shows it. But that share is somebody's: two ranks have the same inputs, which they never
had. So each rank tells a digest of its inputs in every vote, and until something is lost all note
whether ranks had the same. Where they never had, a lost rank's microbatch with the inputs of
another one's is not believed.

It says nothing where ranks had the same inputs before, by chance or because they share their data,
and nothing in the first steps.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from recoverrun.worker.tracking.microbatches import Microbatch

LEAST = 2
"""Votes in which ranks must have had different inputs, before that is expected."""

DOUBLED = (
    "rank {rank}'s microbatch {index} of step {step}, executed again here, has the same inputs as "
    "rank {other}'s, though until now ranks never had the same: its share of the data is unknown"
)

Kind = tuple[str, int, int]
"""A loop, the line of a backward in it, and how many come before that in an iteration."""


class DistinctInputs:
    """The knowledge of one rank about the inputs of all, by kind of microbatch."""

    def __init__(self) -> None:
        self._differed: Counter[Kind] = Counter()  # votes
        self._met: set[Kind] = set()  # two ranks had the same

    def note(self, first: Microbatch, digests: Collection[int]) -> None:
        """All ranks had inputs with these `digests` in their first microbatches, and this one in
        `first`. Nothing is lost.
        """
        kind = kind_of(first)
        if len(set(digests)) < len(digests):
            self._met.add(kind)
        elif len(digests) > 1:
            self._differed[kind] += 1

    def twin(
        self,
        microbatch: Microbatch,
        digest: int,
        others: Mapping[int, Sequence[int]],
    ) -> int | None:
        """The rank that has the same inputs as a lost one's microbatch with this `digest`, though
        ranks never had; None if there is none. `microbatch` is our own one of the same index,
        `others` are the digests of survivors' own.
        """
        kind = kind_of(microbatch)
        if not digest or kind in self._met or self._differed[kind] < LEAST:
            return None
        at = microbatch.index
        same = (rank for rank, own in sorted(others.items()) if digest in own[at : at + 1])
        return next(same, None)


def kind_of(microbatch: Microbatch) -> Kind:
    place = microbatch.places[0]
    return place.top.loop.id, place.line, place.skip
