"""The layout of pieces in a bay, which is mostly that of the snapshot before.

From one snapshot to the next a rank has the same tensors with other elements. As long as names,
kinds and shapes are what they were, and the same ones may be copied later, every piece has the
place that it had, and their table is not packed again.
"""

from dataclasses import dataclass

from recoverrun.worker.snapshots.piece_table import Placed, RankImage, packed_table, placed
from recoverrun.worker.snapshots.unchanged_tensors import SMALL_BYTES, lies_as_it_is


@dataclass(frozen=True, slots=True)
class PieceLayout:
    """Places by the numbers of the tensors; those that are copied `at_once` lie first."""

    places: list[Placed]
    at_once: list[int]
    later: list[int]
    nbytes: int
    first: int  # bytes that are copied at once
    table: bytes


class Layouts:
    """The layouts of one rank."""

    def __init__(self) -> None:
        self._known: tuple[object, ...] | None = None
        self._layout: PieceLayout | None = None

    def of(self, image: RankImage, waits: frozenset[str]) -> PieceLayout:
        """The layout of `image`. Large pieces of these names are copied later."""
        tensors = image.tensors
        plain = [lies_as_it_is(one) for one in tensors]
        known = (
            list(image.names),
            waits,
            [one.dtype for one in tensors],
            [one.shape for one in tensors],
            plain,
        )
        layout = self._layout
        if layout is None or known != self._known:
            self._known, self._layout = known, (layout := _laid_out(image, waits, plain))
        return layout


def _laid_out(image: RankImage, waits: frozenset[str], plain: list[bool]) -> PieceLayout:
    later = [
        number
        for number, name in enumerate(image.names)
        if name in waits and plain[number] and image.tensors[number].nbytes >= SMALL_BYTES
    ]
    places, nbytes, first = placed(image, set(later))
    at_once = sorted(set(range(len(places))).difference(later))
    return PieceLayout(places, at_once, later, nbytes, first, packed_table(places))
