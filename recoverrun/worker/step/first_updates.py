"""Tells the first update after a backward from further ones.

A script may have an optimizer for each part of its model, or for each parameter; an optimizer may
call another one within its step. All that step after one backward, or within it, make one update.
"""


class FirstUpdates:
    """Of one process. A script that asks for gradients without a backward has first ones alone."""

    def __init__(self) -> None:
        self._hears = False  # of backwards
        self._further = False

    def backward_begins(self) -> None:
        self._hears, self._further = True, False

    def is_first(self) -> bool:
        """An optimizer steps: True if it is the first one since the last backward began."""
        first, self._further = not self._further, self._hears
        return first
