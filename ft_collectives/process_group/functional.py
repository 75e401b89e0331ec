"""Two functional collectives that torch's C++ would route past an elastic group.

`_c10d_functional` calls most methods of a process group through its Python trampoline, but neither
`all_gather_single` nor `reduce_scatter_single`: PyProcessGroup.hpp of torch 2.13 does not override
them, so they reach the native group, which knows nothing of losses. Their CPU kernels are replaced
for every group; a native group gets the same calls as before, by names that torch 2.11 has, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ft_collectives.communicators.c10d import ReduceOp, group_named, options, register_work

OPERATIONS = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.AVG,
    "product": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}

_kept: dict[str, Any] = {}
"""By dispatch key: a registration lives as long as its library object."""


def install(is_elastic: Callable[[Any], bool], keys: Sequence[str] = ("CPU",)) -> None:
    """Replace the kernels of the dispatch `keys`, each of them once.

    `is_elastic(group)` is True for a group whose collectives are complete when they return.
    """
    lacking = [key for key in keys if key not in _kept]
    if not lacking:
        return

    def gather(source: torch.Tensor, size: int, name: Any) -> torch.Tensor:
        group: Any = group_named(name)
        out = source.new_empty((size * source.size(0), *source.shape[1:]))
        work = group._allgather_base(out, source.contiguous())
        return _given(out, work, is_elastic(group))

    def scatter(source: torch.Tensor, operation: str, size: int, name: Any) -> torch.Tensor:
        group: Any = group_named(name)
        out = source.new_empty((source.size(0) // size, *source.shape[1:]))
        chosen = options("ReduceScatterOptions", reduceOp=OPERATIONS[operation.lower()])
        work = group._reduce_scatter_base(out, source.contiguous(), chosen)
        return _given(out, work, is_elastic(group))

    library = torch.library.Library("_c10d_functional", "IMPL")
    for key in lacking:
        library.impl("all_gather_into_tensor", gather, key)
        library.impl("reduce_scatter_tensor", scatter, key)
        _kept[key] = library


def _given(out: torch.Tensor, work: Any, complete: bool) -> torch.Tensor:
    if not complete:
        register_work(out, work)  # `wait_tensor` finds it there
    return out
