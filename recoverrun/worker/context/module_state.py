"""Modules are left as they were: a re-execution is of another rank's data.

A forward pass may change more than gradients: running means and other buffers, and whatever the
code of a module keeps on itself, such as the hidden state of a recurrent network or its last loss.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

KEPT_BYTES = 1 << 24
"""The size of the largest tensor in a module's attributes that is copied and put back."""

FEW = 64
"""The number of a list's first items among which modules are looked for."""

REBUILT = "executed again, the script's code gives {} other submodules or parameters"

TORCHS = frozenset(vars(nn.Module()))
"""Attributes of every module, such as its parameters, which wrappers exchange during a pass."""


def among(namespaces: Iterable[Mapping[str, Any]]) -> list[nn.Module]:
    """The modules that are variables or attributes there, or in a list that is one, each with
    those inside it.
    """
    held = [value for namespace in namespaces for value in list(namespace.values())]
    inside = [one for value in held if type(value) in (list, tuple) for one in value[:FEW]]
    roots = [value for value in (*held, *inside) if isinstance(value, nn.Module)]
    return list(dict.fromkeys(module for root in roots for module in root.modules()))


class ModuleStructure:
    """The parts of modules: their submodules, and the names of their parameters.

    Code that makes a model deeper has done so in this rank's own microbatch. Executed again it
    finds the deeper one, and makes it deeper still: its gradients are of another model.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._parts = [
            (one, dict(one._modules.items()), frozenset(one._parameters.keys())) for one in modules
        ]

    @property
    def changed(self) -> str:
        """A sentence about the first module that has other parts now, "" if none has."""
        for module, inner, names in self._parts:
            # Wrappers of FSDP take parameters away for a pass, and give them back.
            if list(module._modules.items()) != list(inner.items()) or _more(module, names):
                return REBUILT.format(type(module).__name__)
        return ""

    def put_back(self) -> None:
        """Let the modules have the parts that they had."""
        for module, inner, names in self._parts:
            if list(module._modules.items()) != list(inner.items()):
                module._modules.clear()
                module._modules.update(inner)
            for name in _more(module, names):
                del module._parameters[name]


def _more(module: nn.Module, names: Set[str]) -> Set[str]:
    """Names of parameters that the module did not have."""
    return set(module._parameters.keys()) - names


@contextmanager
def untouched(
    modules: Iterable[nn.Module], buffers: Iterable[torch.Tensor]
) -> Iterator[ModuleStructure]:
    """Afterwards `modules` and `buffers` are what they were before, also for a backward that is yet
    to come and complains of what was written to them since its forward.
    """
    modules = list(modules)
    structure = ModuleStructure(modules)
    inside = [one for module in modules for one in module.buffers(recurse=False)]
    every = {id(one): one for one in (*buffers, *inside) if not one.is_inference()}
    values = [(buffer, buffer.detach().clone()) for buffer in every.values()]
    registers = [(module._buffers, dict(module._buffers.items())) for module in modules]
    attributes = [(module, dict(vars(module))) for module in modules if has_own_code(module)]
    inner = [value for _, own in attributes for name, value in own.items() if name not in TORCHS]
    tensors = [
        (value, value._version, value.detach().clone())
        for value in inner
        if _may_change_in_place(value)
    ]
    modes = [(module, module.training) for module in modules]
    trained = [
        (param, param.requires_grad)
        for module in modules
        for param in module.parameters(recurse=False)
    ]
    containers = [(value, value.copy()) for value in inner if type(value) in (list, dict, set)]
    try:
        with _uncounted([*every.values(), *(tensor for tensor, _, _ in tensors)]):
            try:
                yield structure
            finally:
                with torch.no_grad():
                    for buffer, value in values:
                        buffer.copy_(value)
                    for tensor, version, value in tensors:
                        if tensor._version != version:
                            tensor.copy_(value)
    finally:
        structure.put_back()
        for module, mode in modes:
            module.training = mode
        for param, wanted in trained:
            if param.requires_grad != wanted and param.is_leaf:
                param.requires_grad_(wanted)
        for module, own in attributes:
            _restore(vars(module), own)
        for register, known in registers:
            _restore(register, known)
        for container, content in containers:
            container.clear()
            (container.extend if type(container) is list else container.update)(content)


@contextmanager
def _uncounted(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Changes of `tensors` are not counted."""
    with ExitStack() as counters:
        preserve = vars(torch.autograd)["_unsafe_preserve_version_counter"]
        for tensor in tensors:  # older versions of torch take them one by one
            counters.enter_context(preserve(tensor))
        yield


def has_own_code(module: nn.Module) -> bool:
    """True if it has code besides torch's: what a wrapper notes of its passes is true of
    re-executed ones, too.
    """
    return any(
        kind.__module__.partition(".")[0] != "torch"
        for kind in type(module).__mro__
        if issubclass(kind, nn.Module)
    )


def _may_change_in_place(value: Any) -> bool:
    if type(value) is not torch.Tensor or value.requires_grad or value.is_inference():
        return False
    return value.layout is torch.strided and value.numel() * value.element_size() <= KEPT_BYTES


def _restore(attributes: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Buffers of a scripted module are no dict, but a view of what its C++ code holds: it has these
    methods, and names neither come nor go.
    """
    there = dict(attributes.items())
    for name in there.keys() - own.keys():
        del attributes[name]
    for name, value in own.items():
        if there.get(name, own) is not value:
            attributes[name] = value
