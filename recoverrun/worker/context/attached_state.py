"""State that a script keeps in hooks and in attributes of modules.

    weight.register_hook(Noise(rank))               # a hook that counts its calls
    criterion.label_smoothing = 0.1 * share         # an attribute of a loss, or of a layer

Hooks, and what is written to modules once training has begun, are looked at like objects of the
script's own: each under a name that no variable has. `rank_constants` looks at what modules were
made with.
"""

import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

MOST = 64
"""The number of hooks, and of modules, that are followed; later ones are not."""

PLAIN = frozenset({bool, int, float, str, type(None)})
DICTS = frozenset({dict, OrderedDict, defaultdict, Counter})
CONTAINERS = DICTS | {list, tuple, set, deque}

FEW = 64
"""Entries of a container that is followed; longer ones are data."""

DEPTH = 4
"""Levels of containers in containers."""

TENSOR_BYTES = 1 << 12
"""The size of the largest tensor: contexts hold no larger ones either."""

KINDS = PLAIN | CONTAINERS
"""Types of values written to a module that are followed, beside plain tensors."""

LIBRARIES = ("torch", "recoverrun")
WRAPPERS = ("torch.nn.parallel", "torch.distributed")
"""Packages of torch whose own bookkeeping in modules is not the script's state."""

ABSENT = object()
"""In the place of an attribute that was not there."""

FirstWrite = tuple[weakref.ref[Any], str, Any]

Before = Callable[[Any, str, Any], Any]
"""Takes a module, the name of an attribute and its value: what it was earlier."""


class Attached:
    """The attached state of this process."""

    def __init__(self) -> None:
        self.training = False  # from the start of training on: writes to modules are noted
        self._hooks: list[Any] = []
        self._modules: dict[int, tuple[weakref.ref[Any], set[str], int]] = {}
        """By identity: the module, the attributes that were written, and its number."""
        self._written = 0  # the number of the next module that is written to
        self.first_writes: list[FirstWrite] = []
        self._before: Before = lambda module, name, value: value

    def ask(self, before: Before) -> None:
        """From now on `before` knows what attributes held that code has changed in place."""
        self._before = before

    def hook(self, function: Any) -> None:
        """The script has registered `function` as a hook."""
        if len(self._hooks) < MOST and not any(function is one for one in self._hooks):
            self._hooks.append(function)

    def write(self, module: Any, name: str, before: Any = ABSENT) -> None:
        """The script has written to an attribute of `module`, which was `before`."""
        known = self._modules.get(id(module))
        if known is not None and known[0]() is module:
            if name in known[1]:
                return
            known[1].add(name)
        elif self._written < MOST:
            self._modules[id(module)] = weakref.ref(module), {name}, self._written
            self._written += 1
        else:
            return
        before = self._before(module, name, before)
        if before is ABSENT or is_light(before):
            self.first_writes.append((weakref.ref(module), name, before))

    def unwritten(self, since: int) -> Iterator[tuple[Any, str, Any]]:
        """The attributes that were first written after `since` of them had been, with what each was
        before. What an iteration began with does not have these.
        """
        for reference, name, before in self.first_writes[since:]:
            if (module := reference()) is not None:
                yield module, name, before

    def written(self, module: Any) -> frozenset[str]:
        """Names of its attributes that the script has written to."""
        known = self._modules.get(id(module))
        return frozenset(known[1]) if known is not None and known[0]() is module else frozenset()

    def names(self) -> dict[str, Any]:
        """All of these objects. Each keeps its number: on another rank others may be gone."""
        hooks = {f"hook {number}": one for number, one in enumerate(self._hooks)}
        held = [(number, one()) for one, _, number in self._modules.values()]
        return {**hooks, **{f"module {number}": one for number, one in held if one is not None}}


def is_light(value: Any, depth: int = DEPTH) -> bool:
    """True of what may be kept as long as the run lasts: it holds no results, and few values."""
    kind: Any = type(value)
    if kind in PLAIN:
        return True
    if kind in CONTAINERS:
        if not depth or len(value) > FEW:
            return False
        keys = list(value) if kind in DICTS else ()
        parts = list(value.values()) if kind in DICTS else list(value)
        return all(type(key) in PLAIN for key in keys) and all(
            is_light(part, depth - 1) for part in parts
        )
    import torch

    if kind is not torch.Tensor:
        return False
    with torch._C.DisableTorchFunction():  # modes of the script hear of what it asks alone
        if value.requires_grad or value.is_quantized or value.is_meta:
            return False
        strided = value.layout is torch.strided
        return bool(strided and value.numel() * value.element_size() <= TENSOR_BYTES)


def noted(value: Any) -> Any:
    """A copy of a light value that no change of the original reaches."""
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if kind in DICTS:
        copy = value.copy()
        for key, one in value.items():
            copy[key] = noted(one)
        return copy
    if kind is deque:
        return deque(map(noted, tuple(value)), value.maxlen)
    if kind in CONTAINERS:
        return kind(map(noted, tuple(value)))
    return value.detach().clone()


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
        before = vars(module).get(name, ABSENT) if ATTACHED.training else ABSENT
        original(module, name, value)
        if ATTACHED.training and name not in usual and _is_state(value):
            if not type(module).__module__.startswith(WRAPPERS):
                ATTACHED.write(module, name, before)

    def _is_state(value: Any) -> bool:
        return type(value) in KINDS or type(value) is torch.Tensor

    return __setattr__
