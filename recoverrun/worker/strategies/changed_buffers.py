"""Buffers of a module that the script itself changes between two transactions: a temperature that
falls, say. It does so on all ranks, also on one that is lost since.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from recoverrun.worker.step.forward_sync import Values

CHANGED = (
    "the script changes buffers of the model between microbatches in which rank {rank} had other "
    "values: those that it would have now are not known"
)


class ChangedBuffers:
    """Those of one module, by the place of each."""

    def __init__(self, first: int, weaken: Callable[[str], None]) -> None:
        """All take over those of rank `first`."""
        self._first = first
        self._weaken = weaken
        self._ended: Values = {}  # this rank's own as the last transaction ended
        self._versions: dict[int, int] = {}  # of these

    def end(self, buffers: Sequence[Tensor], places: Iterable[int]) -> None:
        """Keep this rank's own at these places, with which a transaction ends."""
        now = {at: buffers[at] for at in places if at < len(buffers)}
        self._ended = copied(self._ended, now)
        self._versions = {at: version(one) for at, one in now.items()}

    def since(self, buffers: Sequence[Tensor]) -> Values:
        """Those that were changed since the last transaction, as they are now."""
        return {
            at: buffers[at].detach().clone()
            for at, was in self._versions.items()
            if at < len(buffers) and version(buffers[at]) != was
        }

    def put_in(self, changed: Values, values: Values) -> Values:
        """`values` of the lost first rank as the last transaction ended, with what was `changed`
        since: elements that were equal there are equal again.
        """
        made = dict(values)
        for at in changed.keys() & values.keys():
            now, ended, theirs = changed[at], self._ended[at], values[at]
            if not now.shape == ended.shape == theirs.shape:
                continue
            moved = ~_same(now, ended)
            if bool((moved & ~_same(theirs, ended)).any()):
                self._weaken(CHANGED.format(rank=self._first))
            made[at] = torch.where(moved, now, theirs)
        return made


def version(buffer: Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version


def copied(old: Values, now: Values) -> Values:
    """A copy of `now`, in the memory of the `old` one if that has its shapes."""
    if {at: one.shape for at, one in old.items()} == {at: one.shape for at, one in now.items()}:
        with torch.no_grad():
            torch._foreach_copy_(list(old.values()), list(now.values()))
        return old
    return {at: one.detach().clone() for at, one in now.items()}


def _same(one: Tensor, other: Tensor) -> Tensor:
    """The elements that are equal; a NaN is equal to another one."""
    return (one == other) | ((one != one) & (other != other))
