"""The contents of a transfer to a newcomer, and what they are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from recoverrun.worker.arrival.structure import Structure
from recoverrun.worker.arrival.value_marks import Mark
from recoverrun.worker.arrival.value_places import Place


@dataclass(frozen=True, slots=True)
class Before:
    """The state of a process as the run began."""

    digests: Mapping[Place, int] = field(default_factory=dict)  # of plain values
    modules: frozenset[str] = frozenset()  # their paths
    marks: Mapping[Place, Mark] = field(default_factory=dict)  # of what changes in place
    structure: Structure = field(default_factory=Structure)


@dataclass(frozen=True, slots=True)
class PackedState:
    """`manifest` is plain; its tensors are in `tensors`, by number."""

    manifest: dict[str, Any]
    tensors: list[torch.Tensor]
