"""DTensors, of which a rank holds the local part alone."""

import sys
from dataclasses import dataclass
from typing import Any

import torch


def is_distributed(value: Any) -> bool:
    """True of a DTensor. Its module is imported by scripts that want it, and after our hooks."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of it that this process holds."""
    one: Any = tensor  # to detach a DTensor takes twenty times as long
    found: torch.Tensor = one._local_tensor if is_distributed(one) else one
    return found.detach()


@dataclass(frozen=True, slots=True, eq=False)
class LocalShard:
    """The local part of a DTensor that is laid out as none that both sides have. Whoever unpacks it
    knows mesh and placements.
    """

    tensor: torch.Tensor


def like(one: Any, part: torch.Tensor, shape: torch.Size, stride: tuple[int, ...]) -> Any:
    """`part` as the local part of a DTensor of this shape that is laid out as `one` is."""
    return type(one.data).from_local(
        part, one.device_mesh, one.placements, run_check=False, shape=shape, stride=stride
    )
