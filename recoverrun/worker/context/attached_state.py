"""State that a script keeps in hooks and in attributes of modules.

    weight.register_hook(Noise(rank))               # a hook that counts its calls
    criterion.label_smoothing = 0.1 * share         # an attribute of a loss, or of a layer

Hooks, and what is written to modules once training has begun, are looked at like objects of the
script's own: each under a name that no variable has. `rank_constants` looks at what modules were
made with.

Ranks may write to other modules, or in another order: each has a head of its own, or the batch says
which expert takes it. So a module goes by its path, and what is written to one module is looked at
in all that have an attribute of that name.
"""

import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from operator import itemgetter
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
"""Types of values written to a module that are followed, beside plain tensors and Enums."""

LIBRARIES = ("torch", "recoverrun")
WRAPPERS = ("torch.nn.parallel", "torch.distributed")
"""Packages of torch whose own bookkeeping in modules is not the script's state."""

ABSENT = object()
"""In the place of an attribute that was not there."""

FirstWrite = tuple[weakref.ref[Any], str, Any]

Paths = Iterable[tuple[str, Any]]
"""Modules, each by a path that leads to it."""

Before = Callable[[Any, str, Any], Any]
"""Takes a module, the name of an attribute and its value: what it was earlier."""


class Attached:
    """The attached state of this process."""

    def __init__(self) -> None:
        self.training = False  # from the start of training on: writes to modules are noted
        self._hooks: list[Any] = []
        self._modules: dict[int, tuple[weakref.ref[Any], set[str], str]] = {}
        """By identity: the module, the attributes that were written, and its name."""
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        """By identity: the modules that are known by their paths, in the same order on all ranks.
        """
        self._spread: set[str] = set()  # attributes that were written to any of these
        self._numbered = 0  # modules without a path that were written to
        self.first_writes: list[FirstWrite] = []
        self._before: Before = lambda module, name, value: value

    def ask(self, before: Before) -> None:
        """From now on `before` knows what attributes held that code has changed in place."""
        self._before = before

    def hook(self, function: Any) -> None:
        """The script has registered `function` as a hook."""
        if len(self._hooks) < MOST and not any(function is one for one in self._hooks):
            self._hooks.append(function)

    def know(self, paths: Paths) -> None:
        """Know modules by their paths from now on; one that has several goes by its first."""
        self._known = {}
        for path, module in paths:
            self._known.setdefault(id(module), (weakref.ref(module), path))

    def write(self, module: Any, name: str, before: Any = ABSENT) -> None:
        """The script has written to an attribute of `module`, which was `before`."""
        if name not in self._spread and self._path(module):
            self._spread.add(name)
            for reference, _ in self._known.values():
                other = reference()
                held = ABSENT if other is None else _attribute(other, name)
                if other is module or is_state(held):
                    self._note(other, name, before if other is module else held)
        self._note(module, name, before)

    def _note(self, module: Any, name: str, before: Any) -> None:
        known = self._modules.get(id(module))
        if known is not None and known[0]() is module:
            if name in known[1]:
                return
            known[1].add(name)
        elif len(self._modules) < MOST:
            self._modules[id(module)] = weakref.ref(module), {name}, self._name(module)
        else:
            return
        before = self._before(module, name, before)
        if before is ABSENT or is_light(before):
            self.first_writes.append((weakref.ref(module), name, before))

    def _path(self, module: Any) -> str:
        """The path of the module, "" if it is not known."""
        known = self._known.get(id(module))
        return known[1] if known is not None and known[0]() is module else ""

    def _name(self, module: Any) -> str:
        path = self._path(module)
        if not path:
            path, self._numbered = str(self._numbered), self._numbered + 1
        return f"module {path}"

    def learned(self, here: Paths) -> list[list[Any]]:
        """The modules that are known or were written to, for a process that takes a lost rank's
        place: of each a path by which it is found `here`, the one by which it is known, its name,
        and the attributes that were written.
        """
        rows = []
        for module, paths in _paths_by_module(here):
            known, (name, written) = self._path(module), self._written(module)
            if known or name:
                rows.append([known if known in paths else paths[0], known, name, sorted(written)])
        return rows

    def learn(self, learned: Iterable[tuple[str, str, str, list[str]]], here: Paths) -> None:
        """Follow what another rank follows, as far as modules of these paths are `here`."""
        there = dict(here)
        rows = [(there[path], *row) for path, *row in learned if path in there]
        self.know((known, module) for module, known, _, _ in rows if known)
        for module, _, name, written in rows:
            if name:
                self._modules[id(module)] = weakref.ref(module), set(written), name
                self._spread |= set(written)

    def unwritten(self, since: int) -> Iterator[tuple[Any, str, Any]]:
        """The attributes that were first written after `since` of them had been, with what each was
        before. What an iteration began with does not have these.
        """
        for reference, name, before in self.first_writes[since:]:
            if (module := reference()) is not None:
                yield module, name, before

    def written(self, module: Any) -> frozenset[str]:
        """Names of its attributes that the script has written to."""
        return self._written(module)[1]

    def _written(self, module: Any) -> tuple[str, frozenset[str]]:
        """The name of a module that the script has written to, and the attributes."""
        known = self._modules.get(id(module))
        if known is None or known[0]() is not module:
            return "", frozenset()
        return known[2], frozenset(known[1])

    def names(self) -> dict[str, Any]:
        """All of these objects. Each keeps its name: on another rank others may be gone."""
        hooks = {f"hook {number}": one for number, one in enumerate(self._hooks)}
        held = sorted(((name, one) for one, _, name in self._modules.values()), key=itemgetter(0))
        found = ((name, one()) for name, one in held)
        return {**hooks, **{name: one for name, one in found if one is not None}}


def _paths_by_module(here: Paths) -> list[tuple[Any, list[str]]]:
    found: dict[int, tuple[Any, list[str]]] = {}
    for path, module in here:
        found.setdefault(id(module), (module, []))[1].append(path)
    return list(found.values())


def _attribute(module: Any, name: str) -> Any:
    """The value of an attribute or a buffer, if there is one of that name."""
    attributes = vars(module)
    return attributes.get(name, attributes["_buffers"].get(name, ABSENT))


def is_state(value: Any) -> bool:
    """True of what is followed where the script writes it to a module."""
    import torch

    kind: Any = type(value)
    return kind in KINDS or kind is torch.Tensor or issubclass(kind, Enum)


def is_light(value: Any, depth: int = DEPTH) -> bool:
    """True of what may be kept as long as the run lasts: it holds no results, and few values."""
    kind: Any = type(value)
    if kind in PLAIN or issubclass(kind, Enum):
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
    if kind in PLAIN or issubclass(kind, Enum):
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
        if ATTACHED.training and name not in usual and is_state(value):
            if not type(module).__module__.startswith(WRAPPERS):
                ATTACHED.write(module, name, before)

    return __setattr__
