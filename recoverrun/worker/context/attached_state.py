"""State that a script keeps in hooks and in attributes of modules.

    weight.register_hook(Noise(rank))               # a hook that counts its calls
    criterion.label_smoothing = 0.1 * share         # an attribute of a loss, or of a layer

Hooks, and what is written to modules once training has begun, are looked at like objects of the
script's own: each under a name that no variable has. `rank_constants` looks at what modules were
made with.
"""

import weakref
from collections.abc import Callable
from typing import Any

MOST = 64
"""The number of hooks, and of modules, that are followed; later ones are not."""

KINDS = frozenset({bool, int, float, str, list, tuple, type(None)})
"""Types of values written to a module that are followed, beside plain tensors."""

LIBRARIES = ("torch", "recoverrun")
WRAPPERS = ("torch.nn.parallel", "torch.distributed")
"""Packages of torch whose own bookkeeping in modules is not the script's state."""


class Attached:
    """The attached state of this process."""

    def __init__(self) -> None:
        self.training = False  # from the start of training on: writes to modules are noted
        self._hooks: list[Any] = []
        self._modules: dict[int, tuple[weakref.ref[Any], set[str], int]] = {}
        """By identity: the module, the attributes that were written, and its number."""
        self._written = 0  # the number of the next module that is written to

    def hook(self, function: Any) -> None:
        """The script has registered `function` as a hook."""
        if len(self._hooks) < MOST and not any(function is one for one in self._hooks):
            self._hooks.append(function)

    def write(self, module: Any, name: str) -> None:
        """The script has written to an attribute of `module`."""
        known = self._modules.get(id(module))
        if known is not None and known[0]() is module:
            known[1].add(name)
        elif self._written < MOST:
            self._modules[id(module)] = weakref.ref(module), {name}, self._written
            self._written += 1

    def written(self, module: Any) -> frozenset[str]:
        """Names of its attributes that the script has written to."""
        known = self._modules.get(id(module))
        return frozenset(known[1]) if known is not None and known[0]() is module else frozenset()

    def names(self) -> dict[str, Any]:
        """All of these objects. Each keeps its number: on another rank others may be gone."""
        hooks = {f"hook {number}": one for number, one in enumerate(self._hooks)}
        held = [(number, one()) for one, _, number in self._modules.values()]
        return {**hooks, **{f"module {number}": one for number, one in held if one is not None}}


ATTACHED = Attached()
"""Of this process: torch's classes know of no other."""


# ------------------------------------------------------------------------------- torch's side


def hooking(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.register_hook`, `Module.register_forward_hook` and the like."""

    def wrapper(owner: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(owner, hook, *args, **kwargs)
        function = getattr(hook, "__self__", hook)
        package = str(getattr(function, "__module__", type(function).__module__)).partition(".")[0]
        if package not in LIBRARIES and getattr(owner, "is_leaf", True):
            ATTACHED.hook(hook)
        return made

    return wrapper


def writing(original: Callable[..., None]) -> Callable[..., None]:
    """`Module.__setattr__`."""
    import torch

    usual = frozenset(vars(torch.nn.Module()))

    def __setattr__(module: Any, name: str, value: Any) -> None:
        original(module, name, value)
        if ATTACHED.training and name not in usual and _is_state(value):
            if not type(module).__module__.startswith(WRAPPERS):
                ATTACHED.write(module, name)

    def _is_state(value: Any) -> bool:
        return type(value) in KINDS or type(value) is torch.Tensor

    return __setattr__
