"""The contents of a transfer to a newcomer."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class PackedState:
    """`manifest` is plain; its tensors are in `tensors`, by number."""

    manifest: dict[str, Any]
    tensors: list[torch.Tensor]
