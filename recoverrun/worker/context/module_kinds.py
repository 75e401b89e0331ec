"""The classes of modules beneath those with which torch wraps them."""

import functools
from typing import Any

from torch import nn

WRAPPING = ("torch.nn.parallel", "torch.distributed")


def kind_of(module: nn.Module) -> Any:
    """The class beneath those of DDP and FSDP; nn.Module itself if it only wraps another one."""
    return _beneath(type(module).__mro__)


@functools.lru_cache(maxsize=1 << 12)
def _beneath(kinds: tuple[Any, ...]) -> Any:
    return next(kind for kind in kinds if not kind.__module__.startswith(WRAPPING))
