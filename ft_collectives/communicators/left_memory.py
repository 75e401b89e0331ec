"""Memory of operations that were left behind: gloo may still write to it."""

import threading
from collections.abc import Sequence

import torch

from ft_collectives.communicators.channel import Pending

_held: dict[int, torch.Tensor] = {}
"""By identity; of the process, as what writes to it is left to the process."""


class LeftMemory:
    """The left memory of one fabric; `changed` is its lock."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed

    def hold(self, staged: Sequence[torch.Tensor], until: Pending | None = None) -> None:
        """Keep memory that an operation may still write to after it was left behind.

        It is kept for ever, or until the operation ends after all.
        """
        if until is not None and until.on_device is not None:
            until.on_device.keep(staged)
            return
        with self._changed:
            if until is not None and until.done:
                return
            _held.update({id(tensor): tensor for tensor in staged})
            if until is not None:
                until.future.add_done_callback(lambda _: self.release(staged))

    def release(self, staged: Sequence[torch.Tensor]) -> None:
        """Let go of memory of an operation that is complete."""
        for tensor in staged:
            _held.pop(id(tensor), None)
