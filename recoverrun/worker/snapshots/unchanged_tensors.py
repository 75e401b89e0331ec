"""The tensors that do not change from the top of a step to the update: learned by sums.

A tensor's own count of changes does not tell: some kernels write without it. So at the first
snapshot each tensor is summed at the top and at the fence; what kept its sum is copied while
forward and backward run from then on. What optimizers train, and their state, is expected to: it is
copied so in the first one, too. A copy whose sum is not the one of the top is none. All is learned
anew at every 50th snapshot.
"""

from collections.abc import Collection, Sequence

import torch

from ft_collectives.communicators.tensor_bits import bits_of

LEARN_EVERY = 50

EXPECTED = ("trained", "optimizers")
"""The beginnings of the names of what is expected not to change before the fence."""

SAMPLE = 256
"""Words of a tensor."""

SMALL_BYTES = 1 << 16
"""A smaller tensor is copied at the top, whatever it does."""


class UnchangedTensors:
    """The tensors of one rank that do not change until the optimizer's update, by name."""

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None  # until the first fence
        self._left = 0  # snapshots before the one in which all is learned
        self._sums: dict[str, tuple[torch.Tensor, int]] = {}

    @property
    def is_due(self) -> bool:
        """True if all is to be learned in the next snapshot."""
        return self._left <= 0

    def begins(self) -> None:
        """A snapshot begins. One in which all was to be learned is repeated if it comes to no
        fence.
        """
        self._left -= 1

    def sum_up(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
        """Sum up, at the top of a step in which all is learned."""
        pairs = zip(names, tensors, strict=True)
        self._sums = {name: (one, sum_of(one)) for name, one in pairs if is_candidate(one)}

    def learn(self) -> dict[str, int]:
        """Learn, at the fence of that step. Returns the sums of the top."""
        sums = {name: was for name, (_, was) in self._sums.items()}
        self.names = frozenset(
            name for name, (one, was) in self._sums.items() if sum_of(one) == was
        )
        self._sums, self._left = {}, LEARN_EVERY - 1
        return sums

    def forget(self, names: Collection[str]) -> None:
        """Forget that these did not change: they did after all."""
        self.names = (self.names or frozenset()).difference(names)


def is_candidate(tensor: torch.Tensor) -> bool:
    """True if its elements lie in memory as they are, and copying them is worth a thread."""
    return tensor.nbytes >= SMALL_BYTES and lies_as_it_is(tensor)


def lies_as_it_is(tensor: torch.Tensor) -> bool:
    """True if its elements lie in the memory of this process as they are."""
    plain = tensor.is_cpu and tensor.is_contiguous()
    return plain and not (tensor.is_conj() or tensor.is_neg())


def sample_of(tensor: torch.Tensor) -> int:
    """The sum of some bits, evenly spread."""
    flat = bits_of(tensor)
    flat = flat[-flat.storage_offset() % 8 :]
    words = flat[: flat.numel() // 8 * 8].view(torch.int64)
    return int(words[:: max(1, words.numel() // SAMPLE)].sum())


def sum_of(tensor: torch.Tensor) -> int:
    """The sum of all bits, with a weight for those that words of 8 bytes leave over."""
    flat = bits_of(tensor)
    whole = flat.numel() // 8 * 8
    if flat.storage_offset() % 8:
        return int(flat.sum(dtype=torch.int64))
    words = int(flat[:whole].view(torch.int64).sum())
    return words + (int(flat[whole:].sum(dtype=torch.int64)) << 1)
