"""The flat parameter of `fsdp1`: its gradient before the all-reduce, and its way back."""

from dataclasses import dataclass
from typing import Any

import torch

from recoverrun.worker.context.evidence import crc_of_named

SAVED = "_saved_grad_shard"
"""Where a flat parameter keeps its sharded gradient while a backward is running."""


@dataclass(slots=True, eq=False)
class Flat:
    """The sharded gradient of one flat parameter."""

    param: Any
    handle: Any  # torch's, of this parameter
    divisor: float  # after the sum
    accumulator: torch.Tensor | None = None
    earlier: bool = False  # there was a gradient before this transaction

    @property
    def gradient(self) -> torch.Tensor | None:
        """The gradient as the script finds it once the backward has ended."""
        saved = getattr(self.param, SAVED, None)
        found: torch.Tensor | None = self.param.grad if saved is None else saved
        return found

    def show(self) -> None:
        """Show the gradient: with `use_orig_params` gradients of parameters are views of the
        sharded one, and torch has made them views of a part.
        """
        if self.handle._use_orig_params:
            self.handle._use_sharded_grad_views()

    def fill(self, staging: torch.Tensor) -> None:
        if self.accumulator is None:
            staging.zero_()
        else:
            staging.copy_(self.accumulator)

    def deliver(self, total: torch.Tensor) -> None:
        """INV-8: divided by the original numbers of shards and replicas."""
        if self.divisor > 1:
            total.div_(self.divisor)
        gradient = self.gradient
        assert gradient is not None, "left there by `reduce_grad`"
        if self.earlier:
            gradient.add_(total)
        else:
            gradient.copy_(total)
        self.accumulator = None


def local_shard(param: Any) -> torch.Tensor:
    """This rank's part of a flat parameter, which torch keeps apart from its first forward on."""
    found: torch.Tensor = getattr(param, "_local_shard", param.data)
    return found


def crc_of_flat(handle: Any) -> int:
    """The checksum of the unsharded gradient of a flat parameter, as it is about to be reduced."""
    param = handle.flat_param
    return crc_of_named(" ".join(param._fqns), param.grad, handle._reduce_dtype)
