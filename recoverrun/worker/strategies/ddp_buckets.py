"""The buckets of DDP that `ddp` keeps, and DDP's reducer while it has to keep still."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._distributed_c10d import BuiltinCommHookType as _Builtin
from torch.nn.parallel import DistributedDataParallel

from recoverrun.worker.strategies.memory_order import laid_out

EVEN = "in a Join context ranks may take different numbers of steps, and have no vote in common"
UNEVEN = "DDP.join(divide_by_initial_world_size=False) divides as no hook of ours can"


UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This "
    "error indicates that your module has parameters that were not used in producing loss. You can "
    "enable unused parameter detection by passing the keyword argument "
    "`find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`"
)
"""DDP's own words (reducer.cpp), where it is not there to say them."""


SPARSE = "gradients are sparse (`sparse=True` of an embedding): nobody can make up a part of such"


@dataclass(slots=True, eq=False)
class Gradients:
    """The parameters of one DDP bucket; `p.grad` is their accumulator.

    With `counts` the staging memory ends with a number for every parameter: how many ranks have a
    gradient for it. One that a rank did not use, but another one did, gets the sum; one that nobody
    used keeps what it has, which an optimizer tells from a gradient of zeros.
    """

    params: list[torch.nn.Parameter]
    replicas: int
    counts: bool = False
    wire: torch.dtype | None = None  # what is sent, divided before it is rounded
    divides: bool = False  # a hook of the script's does; torch multiplies by 1 / n
    later: bool = False  # the sum is scaled, not what is summed: parts of a slot come one by one
    carried: list[torch.Tensor | None] = field(default_factory=list)
    """What the gradients held before the transaction: torch reduces that, too."""
    views: frozenset[int] = frozenset()
    """Addresses of the gradients that were views of DDP's buckets before the transaction: torch
    divides these, instead of multiplying by 1 / n.
    """
    _of: torch.Tensor | None = None
    _views: list[torch.Tensor] = field(default_factory=list)
    lacking: bool = False  # the last step gave no gradient to one of them

    @property
    def size(self) -> int:
        """Elements of the staging memory."""
        return sum(param.numel() for param in self.params) + self.apart

    @property
    def apart(self) -> int:
        """Of these, the counts."""
        return self.counts * len(self.params)

    def fill(self, staging: torch.Tensor) -> None:
        grads, parts = self._given(staging)
        self.lacking = len(grads) < len(self.params)
        if self.lacking:
            staging.zero_()
        if self.counts:
            given = [float(param.grad is not None) for param in self.params]
            staging[-len(given) :] = torch.tensor(given)
        self._scaled(grads, parts)

    def carry(self, staging: torch.Tensor) -> bool:
        """Copy what the gradients held before the transaction; False if that was nothing."""
        known = [
            (before, part)
            for before, part in zip(self.carried, self._parts(staging), strict=False)
            if before is not None
        ]
        self._scaled([before for before, _ in known], [part for _, part in known])
        return bool(known)

    def _scaled(self, grads: list[torch.Tensor], parts: list[torch.Tensor]) -> None:
        """Copy to `parts` and scale as DDP does before it reduces (reducer.cpp, torch 2.13).

        INV-8: by the original world, never by the survivors.
        """
        if self._scales_sum or self.divides or self.wire is not None:
            if grads:
                torch._foreach_copy_(parts, grads)
            for part in () if self._scales_sum else parts:
                part.div_(self.replicas)
            return
        with torch.no_grad():
            for grad, part in zip(grads, parts, strict=True):
                if self.views and grad.data_ptr() in self.views:
                    part.copy_(grad).div_(self.replicas)
                elif grad.device == part.device:
                    torch.mul(grad, 1.0 / self.replicas, out=part)
                else:
                    part.copy_(grad).mul_(1.0 / self.replicas)

    @property
    def _scales_sum(self) -> bool:
        return self.later and self.wire is None

    def deliver(self, total: torch.Tensor) -> None:
        if self._scales_sum:
            for part in self._parts(total):
                part.div_(self.replicas) if self.divides else part.mul_(1.0 / self.replicas)
        if self.counts:
            used = total[-len(self.params) :].tolist()
            for param, count in zip(self.params, used, strict=True):
                if count and param.grad is None:
                    param.grad = torch.empty_like(param)
        with torch.no_grad():
            for grad, part in zip(*self._given(total), strict=True):
                grad.copy_(part)

    def _given(self, flat: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The gradients that exist, and their places in `flat`."""
        grads, parts = [], []
        for param, part in zip(self.params, self._parts(flat), strict=True):
            if param.grad is not None:
                grads.append(param.grad)
                parts.append(part)
        return grads, parts

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A view of `flat` for every parameter."""
        if self._of is not flat:  # the same memory serves many steps
            views = flat[: flat.numel() - self.apart].split(
                [param.numel() for param in self.params]
            )
            self._views = [laid_out(v, p) for v, p in zip(views, self.params, strict=True)]
            self._of = flat
        return self._views


def wire_of(hook: Any) -> torch.dtype | None:
    """The type in which one of torch's own comm hooks sends gradients.

    None: as they are. Raises KeyError for a hook that is not known.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return {
        default_hooks.allreduce_hook: None,
        default_hooks.fp16_compress_hook: torch.float16,
        default_hooks.bf16_compress_hook: torch.bfloat16,
        _Builtin.ALLREDUCE: None,
        _Builtin.FP16_COMPRESS: torch.float16,
    }[hook]


def native(
    module: DistributedDataParallel,
    bucket: Any,
    wire: torch.dtype | None,
    views: frozenset[int] = frozenset(),
) -> torch.futures.Future[torch.Tensor]:
    """DDP's own treatment of a bucket without a hook (reducer.cpp, torch 2.13); `views` as those of
    `Gradients`.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    group, buffer = module.process_group, bucket.buffer()
    if wire is not None:
        compressed: torch.futures.Future[torch.Tensor] = fp16_compress_hook(group, bucket)
        return compressed
    if views:
        for gradient in bucket.gradients():
            stood = gradient.data_ptr() in views
            gradient.div_(group.size()) if stood else gradient.mul_(1.0 / group.size())
    else:
        buffer.mul_(1.0 / group.size())
    work = group.allreduce([buffer])
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed


class Resting:
    """DDP's reducer while this rank acts as another: ranks divide into buckets anew together."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    @staticmethod
    def forget(module: Any) -> None:
        """DDP notes which parameters a step uses, also those that only a lost rank would have."""
        if module.find_unused_parameters and not module.static_graph:
            module.reducer._reset_state()  # it divides into buckets once, as nothing is static

    def _rebuild_buckets(self) -> bool:
        return False
