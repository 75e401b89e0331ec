"""The tensors of one rank: what optimizers train, and what modules hold beside it."""

import weakref

import torch
from torch import nn

from recoverrun.worker.arrival import held_tensors
from recoverrun.worker.arrival.sharded_tensors import local
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.object_graph import Holdings


def trained(made: MadeObjects) -> list[torch.Tensor]:
    """Local parts of all parameters of all optimizers, each once."""
    found = {id(param): param for param in held_tensors.trained(made)}
    return [local(param) for param in found.values()]


class ModuleNames:
    """Modules by the path on which each was first found."""

    def __init__(self, there: Holdings) -> None:
        self._known = [(weakref.ref(module), path) for path, module in there.modules]

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(path for _, path in self._known)

    def path(self, module: nn.Module) -> str | None:
        """None if it was not there then."""
        return next((path for ref, path in self._known if ref() is module), None)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of these modules as they are now, by name."""
        return {
            f"{path}.{name}": param
            for ref, path in self._known
            if (module := ref()) is not None
            for name, param in module._parameters.items()
            if param is not None
        }

    def others(self, made: MadeObjects, there: Holdings) -> tuple[dict[str, torch.Tensor], str]:
        """Parameters and buffers that no optimizer has, by name; and where a module is that was not
        there before, "" if there is none.
        """
        seen = {id(param) for param in held_tensors.trained(made)}
        known = {id(one): path for ref, path in self._known if (one := ref()) is not None}
        found: dict[str, torch.Tensor] = {}
        for here, module in there.modules:
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is None or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                path = known.get(id(module), "")
                if not path:
                    return {}, f"{here or type(module).__name__}.{name}"
                found[f"{path}.{name}"] = local(tensor)
        return found, ""
