"""The tensors that do not change from the top of a step to the update: learned by sums.

A tensor's own count of changes does not tell: some kernels write without it. So at the first
snapshot everything is copied at the top, and each tensor is summed there and at the fence; what
kept its sum is copied while forward and backward run from then on. All is learned anew at every
50th snapshot.
"""

from collections.abc import Mapping, Sequence

import torch

from ft_collectives.communicators.tensor_bits import bits_of

LEARN_EVERY = 50

SMALL_BYTES = 1 << 16
"""A smaller tensor is copied at the top, whatever it does."""


class UnchangedTensors:
    """The tensors of one rank that do not change until the optimizer's update, by name."""

    def __init__(self) -> None:
        self._unchanged: set[str] = set()
        self._taken = 0
        self._sums: dict[str, tuple[torch.Tensor, int]] = {}

    @property
    def is_due(self) -> bool:
        """True if in the next snapshot all is to be copied at the top, and learned."""
        return self._taken % LEARN_EVERY == 0

    def begins(self) -> None:
        """That snapshot begins."""
        self._taken += 1

    def may_wait(self, name: str, tensor: torch.Tensor) -> bool:
        """True if this tensor may be copied while the step goes on."""
        return name in self._unchanged and is_candidate(tensor)

    def sum_up(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
        """Sum up, at the top of a step in which all is learned."""
        pairs = zip(names, tensors, strict=True)
        self._sums = {name: (one, sum_of(one)) for name, one in pairs if is_candidate(one)}

    def learn(self) -> None:
        """Learn, at the fence of that step."""
        found: Mapping[str, tuple[torch.Tensor, int]] = self._sums
        self._unchanged = {name for name, (one, before) in found.items() if sum_of(one) == before}
        self._sums = {}

    def forget(self, names: Sequence[str]) -> None:
        """Forget that these did not change: they did after all."""
        self._unchanged.difference_update(names)


def is_candidate(tensor: torch.Tensor) -> bool:
    """True if its elements lie in memory as they are, and copying them is worth a thread."""
    return tensor.nbytes >= SMALL_BYTES and lies_as_it_is(tensor)


def lies_as_it_is(tensor: torch.Tensor) -> bool:
    """True if its elements lie in the memory of this process as they are."""
    plain = tensor.is_cpu and tensor.is_contiguous()
    return plain and not (tensor.is_conj() or tensor.is_neg())


def sum_of(tensor: torch.Tensor) -> int:
    """The sum of all bits, with a weight for those that words of 8 bytes leave over."""
    flat = bits_of(tensor)
    whole = flat.numel() // 8 * 8
    if flat.storage_offset() % 8:
        return int(flat.sum(dtype=torch.int64))
    words = int(flat[:whole].view(torch.int64).sum())
    return words + (int(flat[whole:].sum(dtype=torch.int64)) << 1)
