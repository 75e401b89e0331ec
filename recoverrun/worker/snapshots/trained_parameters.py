"""Parameters that optimizers have and that get gradients: a script may unfreeze a part of its
model, or give an optimizer more parameters, while it trains.

Parameters are told by the module that has them and their name there. A process that goes back gives
its optimizers the same ones, as the script did, before their states are put in place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots.rank_tensors import ModuleNames

UNKNOWN = "an optimizer has parameters that are in no module of this process"
Groups = list[list[str | None]]
"""Of an optimizer: names of the parameters of each, None where one is in no module."""

FEWER = "this process has made {} optimizers, and there were {}"


def told(made: MadeObjects, names: ModuleNames) -> tuple[list[Groups], list[str]]:
    """Plain values for msgpack: the groups of each optimizer, and the names of parameters that get
    no gradient.
    """
    by_name = names.parameters()
    frozen = [name for name, one in by_name.items() if not one.requires_grad]
    return [_groups(one, by_name) for one in made.of("optimizers")], frozen


def _groups(optimizer: Any, by_name: Mapping[str, nn.Parameter]) -> Groups:
    known = {id(one): name for name, one in by_name.items()}
    return [[known.get(id(one)) for one in group["params"]] for group in optimizer.param_groups]


def put(told_ones: Sequence[Any], made: MadeObjects, names: ModuleNames) -> None:
    """Raises NotReachable where this process has no such parameters."""
    by_name, optimizers = names.parameters(), made.of("optimizers")
    theirs, frozen = told_ones[0], frozenset(told_ones[1])
    for name, one in by_name.items():
        if one.requires_grad == (name in frozen) and one.is_leaf:
            one.requires_grad_(name not in frozen)
    if len(optimizers) != len(theirs):
        raise NotReachable(FEWER.format(len(optimizers), len(theirs)))
    for optimizer, groups in zip(optimizers, theirs, strict=True):
        if _groups(optimizer, by_name) != groups:
            _regroup(optimizer, groups, by_name)


def _regroup(
    optimizer: Any, groups: Sequence[Sequence[str | None]], by_name: Mapping[str, nn.Parameter]
) -> None:
    params = [[by_name.get(name or "") for name in group] for group in groups]
    if any(one is None for group in params for one in group):
        raise NotReachable(UNKNOWN)
    present = optimizer.param_groups
    del present[len(params) :]
    for group, ones in zip(present, params, strict=False):
        group["params"][:] = ones
    for ones in params[len(present) :]:
        optimizer.add_param_group({"params": ones})  # what else it holds is loaded
