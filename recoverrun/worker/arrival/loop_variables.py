"""Variables that loops bind, as a newcomer is told: values, and other names of objects."""

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from recoverrun.worker.arrival import frame_variables, other_names, plain_values
from recoverrun.worker.arrival.frame_variables import FrameVariables
from recoverrun.worker.arrival.packing import CannotTravel, Packing
from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.passed_over import PassedOver
from recoverrun.worker.data.batch_substitution import holds_part
from recoverrun.worker.tracking.microbatches import LoopFrame

LONG_TENSOR_BYTES = 1 << 20
"""Of a variable that no later iteration reads: larger ones are results of the last step."""


def told(
    packing: Packing,
    stack: Sequence[LoopFrame],
    frame: FrameType,
    *,
    data: frozenset[int],
    held: tuple[Holdings, Spaces],
    passed: PassedOver,
) -> dict[str, Any]:
    """The variables that the loops bind in each function on the stack, but for those that are
    `passed` over: locals, and variables of its module. Of objects their other names, among those
    `held`.
    """
    there, spaces = held[0], [(space, dict(variables)) for space, variables in held[1]]
    read = [_without(one, passed) for one in frame_variables.read_all(stack, frame)]
    carried = frozenset(name for one in stack for name in one.loop.carried)
    return {
        "frames": [
            [
                list(one.loops),
                *(_values(packing, part, data, carried) for part in (one.local, one.module)),
            ]
            for one in read
        ],
        "other names": other_names.told(read, there, spaces, plain_values.bound_by(stack)),
    }


def _without(read: FrameVariables, passed: PassedOver) -> FrameVariables:
    local, module = (
        {name: one for name, one in part.items() if name not in passed.variables}
        for part in (read.local, read.module)
    )
    return FrameVariables(read.loops, local, module)


def _values(
    packing: Packing, values: Mapping[str, Any], data: frozenset[int], carried: frozenset[str]
) -> list[list[Any]]:
    """Variables by name. Left out is what is no value (a module, a result of the last step) or
    holds `data`: what of it matters comes by other ways, or with the newcomer's own prologue.
    `carried` are read by the next iteration before it binds them.
    """
    told = []
    for name, value in values.items():
        if not _is_result(value, name in carried) and not holds_part(value, data):
            try:
                told.append([name, packing.pack(value, name)])
            except CannotTravel:
                continue
    return told


def _is_result(value: Any, carried: bool) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.requires_grad or (not carried and value.nbytes > LONG_TENSOR_BYTES)
