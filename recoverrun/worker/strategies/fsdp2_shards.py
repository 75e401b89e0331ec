"""The parameter group of `fsdp2`: its gradient before the all-reduce, and its way back."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from recoverrun.worker.context.evidence import crc_of_named
from recoverrun.worker.step.strategy import Switched

ARGUMENTS = (
    "fsdp_params",
    "unsharded_grads",
    "reduce_scatter_group",
    "reduce_scatter_stream",
    "reduce_scatter_comm",
    "orig_dtype",
    "reduce_dtype",
    "device",
    "gradient_divide_factor",
    "all_reduce_group",
    "all_reduce_stream",
    "all_reduce_grads",
    "partial_reduce_output",
    "all_reduce_hook",
    "force_sum_reduction_for_comms",
)
"""Of `foreach_reduce` in torch 2.13; another torch is refused rather than guessed at."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of a parameter group's gradients as torch is about to reduce them, which lets go
    of them.
    """

    sizes: tuple[torch.Size, ...]  # unsharded
    dtype: torch.dtype

    @staticmethod
    def of(call: dict[str, Any]) -> "Shapes":
        """The shapes in this call of `foreach_reduce`."""
        gradients = call["unsharded_grads"]
        sizes = tuple(gradient.size() for gradient in gradients)
        return Shapes(sizes, call["reduce_dtype"] or gradients[0].dtype)


@dataclass(slots=True, eq=False)
class Shards:
    """The sharded gradients of one parameter group."""

    params: list[Any]
    unsharded_sizes: tuple[torch.Size, ...]
    shards: int
    orig_dtype: torch.dtype | None
    average_over: int  # the original number of replicas, or 1 where torch sums
    post_divide: float | None
    hook: Callable[[torch.Tensor], None] | None
    accumulator: torch.Tensor | None = None

    def fill(self, staging: torch.Tensor) -> None:
        if self.accumulator is None:
            staging.zero_()
        else:
            staging.copy_(self.accumulator)

    def set_aside(self) -> tuple[torch.Tensor | None, list[tuple[Any, Any]]]:
        """Take away the accumulator, and what parameters hold, sharded or not."""
        kept = [(one.sharded_param.grad, one.unsharded_accumulated_grad) for one in self.params]
        for one in self.params:
            one.sharded_param.grad = one.unsharded_accumulated_grad = None
        accumulator, self.accumulator = self.accumulator, None
        return accumulator, kept

    def put_back(self, kept: tuple[torch.Tensor | None, list[tuple[Any, Any]]]) -> None:
        self.accumulator, gradients = kept
        for one, (sharded, unsharded) in zip(self.params, gradients, strict=True):
            one.sharded_param.grad, one.unsharded_accumulated_grad = sharded, unsharded

    def deliver(self, total: torch.Tensor) -> None:
        """Deliver as the second half of `foreach_reduce` does after its all-reduce."""
        if self.average_over > 1:
            total.div_(self.average_over)  # INV-8: of the mesh, never of the survivors
        if self.hook is not None:
            self.hook(total)
        if self.post_divide is not None and self.post_divide > 1:
            total.div_(self.post_divide)
        if self.orig_dtype is not None:
            total = total.to(self.orig_dtype)
        offset = 0
        for param, size in zip(self.params, self.unsharded_sizes, strict=True):
            gradient = torch.as_strided(
                total,
                size=param.sharded_size,
                stride=param.contiguous_sharded_stride,
                storage_offset=offset,
            )
            _give(param, gradient)
            offset += _padded_numel(size, self.shards) // self.shards
        self.accumulator = None


def made_for(call: dict[str, Any], shapes: Shapes) -> Shards:
    """Those of the parameters that this call of `foreach_reduce` is about."""
    average, post = _divisors(call, shapes.dtype)
    scatter = call["reduce_scatter_group"]
    return Shards(
        params=list(call["fsdp_params"]),
        unsharded_sizes=shapes.sizes,
        shards=scatter.size() if scatter else 1,
        orig_dtype=call["orig_dtype"],
        average_over=average,
        post_divide=post,
        hook=call["all_reduce_hook"],
    )


def named_parameters(root: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """All parameters of a model, those of FSDP2 sharded: a forward without a backward, as of an
    evaluation, leaves whole ones in their modules.
    """
    fsdp2 = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    found = map(fsdp2._get_module_fsdp_state, root.modules()) if fsdp2 is not None else ()
    groups = [one for state in found if state is not None for one in state._fsdp_param_groups]
    sharded = {
        id(one._unsharded_param): one.sharded_param
        for group in groups
        for one in group.fsdp_params
        if hasattr(one, "_unsharded_param")  # was gathered before
    }
    return [(name, sharded.get(id(one), one)) for name, one in root.named_parameters()]


def crc_of_call(call: dict[str, Any]) -> int:
    """The checksum of the unsharded gradients that this call of `foreach_reduce` is given."""
    crc = 0
    for param, gradient in zip(call["fsdp_params"], call["unsharded_grads"], strict=True):
        crc ^= crc_of_named(param._param_fqn, gradient, call["reduce_dtype"])
    return crc


def crc_of_waiting(groups: Iterable[Any]) -> int:
    """The checksum of gradients that wait in parameter groups to be reduced with later ones."""
    crc = 0
    for param in (one for group in groups for one in group.fsdp_params):
        if param.unsharded_accumulated_grad is not None:
            waits = param.unsharded_accumulated_grad_data
            crc ^= crc_of_named(param._param_fqn, waits, param.reduce_dtype)
    return crc


def _divisors(call: dict[str, Any], dtype: torch.dtype) -> tuple[int, float | None]:
    """(replicas to average over, factor to divide by afterwards) for the original mesh."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

    group = call["all_reduce_group"]
    _, post, _, operation = _get_gradient_divide_factors(
        call["reduce_scatter_group"],
        group,
        dtype,
        call["device"].type,
        call["gradient_divide_factor"],
        call["force_sum_reduction_for_comms"],
    )
    average = operation == dist.ReduceOp.AVG
    return (group.size() if average else 1), post


def _give(param: Any, gradient: torch.Tensor) -> None:
    """Accumulate into the sharded parameter's gradient, as torch does."""
    sharded = param.sharded_param
    if sharded.grad is not None:
        sharded.grad._local_tensor += gradient
    else:
        sharded.grad = param.to_sharded_dtensor(gradient)


def _padded_numel(size: torch.Size, shards: int) -> int:
    """Elements of a gradient whose first dimension is padded to a multiple of `shards`."""
    rows = size[0] if len(size) else 1
    padded = -(-rows // shards) * shards
    rest = 1
    for length in size[1:]:
        rest *= length
    return padded * rest


def switches_of(groups: Iterable[Any]) -> Switched:
    """See `Strategy.switches`: what `set_requires_gradient_sync` and the like have set, and that
    parameters are sharded.
    """
    return partial(_switched, [(one, one.reduce_grads, one.all_reduce_grads) for one in groups])


@contextmanager
def _switched(held: list[tuple[Any, bool, bool]]) -> Iterator[None]:
    kept = [(one, one.reduce_grads, one.all_reduce_grads) for one, _, _ in held]
    sharded = [one for one, _, _ in held if one.is_sharded]
    _set(held)
    try:
        yield
    finally:
        _set(kept)
        # Code that came to no backward has left whole ones. What follows would go on with them, and
        # an update does not change them.
        for one in sharded:
            one._to_sharded()


def _set(held: list[tuple[Any, bool, bool]]) -> None:
    for group, reduces, all_reduces in held:
        group.reduce_grads, group.all_reduce_grads = reduces, all_reduces
