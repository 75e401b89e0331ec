"""Modules of a script that wraps none of them."""

import gc
from collections.abc import Sequence

import torch


def every_module() -> list[torch.nn.Module]:
    """All that there are, in no order that another rank would have, too."""
    # By its type: what looks like an object of another class may do so with a warning.
    return [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]


def holders_of(
    params: Sequence[torch.Tensor], modules: Sequence[torch.nn.Module]
) -> list[torch.nn.Module]:
    """Those of `modules` that hold some of `params` and are in no other such module, in the order
    of what they hold.
    """
    places = {id(param): place for place, param in enumerate(params)}
    first: dict[int, int] = {}
    for module in modules:
        held = [places[id(one)] for one in module.parameters() if id(one) in places]
        if held:
            first[id(module)] = min(held)
    holding = [module for module in modules if id(module) in first]
    inside = {id(one) for module in holding for one in module.modules() if one is not module}
    outermost = [module for module in holding if id(module) not in inside]
    return sorted(outermost, key=lambda module: first[id(module)])
