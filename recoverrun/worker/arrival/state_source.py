"""The state of a slot at the top of one step, from its holder: a live donor, or a snapshot.

A manifest holds all that is no tensor; tensors stand beside it as numbered pieces, so that they can
be received into the memory where they will stay.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class StateLost(Exception):
    """The state cannot be had from this source any more; the text is a sentence for the user."""


class Piece(NamedTuple):
    """One tensor: its elements in C order, `nbytes` in all.

    Names, order and shapes are equal for all sources of an attempt until said otherwise.
    """

    name: str
    dtype: str  # as torch calls it, without "torch."
    shape: tuple[int, ...]
    nbytes: int


class StateSource(Protocol):
    """A source of a slot's state at the top of one step. Each method may raise StateLost."""

    @property
    def attempt(self) -> int:
        """The attempt of the job in which this state was."""

    @property
    def step(self) -> int:
        """The transaction at whose top it was; nothing of that transaction is in it."""

    def manifest(self) -> Mapping[str, object]:
        """All that is no tensor, as plain values (`packing`)."""

    def pieces(self) -> tuple[Piece, ...]:
        """The tensors, by their numbers in the manifest."""

    def read(self, index: int, into: memoryview) -> None:
        """Fill `into`, which has exactly the bytes of piece `index`."""

    def close(self) -> None:
        """Let go of the source; may be called twice."""
