"""The undo log: a script's surroundings, put back after code was executed as another rank.

Re-executed code counts what it sees in dicts, appends to lists, moves schedulers and averages
weights, as it does for its own microbatches; none of that may be counted twice. What is found from
the variables of the script's modules and the loop is noted before, and set right in place
afterwards. Output is kept back. What leaves the process otherwise, as lines in files do, is beyond
undoing; so are large data that are changed in place (docs/scripts.md, "Re-execution").
"""

import functools
import logging
import operator
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

import torch
from torch import nn

from recoverrun.worker.context.object_members import is_own
from recoverrun.worker.context.slot_context import CODE
from recoverrun.worker.data.numpy_arrays import is_plain_array

SMALL_BYTES = 1 << 20
"""Tensors and arrays up to here are put back; larger ones are data, which nobody changes."""

FROZEN_BYTES = 1 << 26
"""The size of all untrained parameters together (an average of weights) that are put back."""

LONG, VERY_LONG = 1_000, 100_000
"""Entries of a container: longer ones are not looked into, and very long ones are data, too."""

DEPTH = 4
ENTRIES = 20_000
"""Looked at in all, so that a recovery does not wait for it."""

CONTAINERS = (list, dict, set, deque)

Undo = Callable[[], None]


@contextmanager
def unchanged(
    namespaces: Iterable[dict[str, Any]],
    modules: Iterable[nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
    own: frozenset[str],
) -> Iterator[None]:
    """Around a re-execution: afterwards all that is found from these is what it was.

    `own` are the names of the script's modules, whose objects are looked into.
    """
    trained = {
        id(p): p for one in optimizers for group in one.param_groups for p in group["params"]
    }
    parameters = {id(p): p for one in modules for p in one.parameters(recurse=False)}
    look = _Look(own)
    for namespace in namespaces:
        look.at_names(namespace)
    for optimizer in optimizers:
        look.at_groups(optimizer)
    look.at_frozen(parameters, set(trained))
    level = logging.root.manager.disable
    logging.disable(sys.maxsize)
    try:
        with redirect_stdout(_nowhere()), redirect_stderr(_nowhere()):
            yield
    finally:
        logging.disable(level)
        for undo in reversed(look.undo):
            undo()


@functools.cache
def _nowhere() -> TextIO:
    """A stream to nowhere, never closed: re-executed code that takes hold of it may keep it."""
    return open(os.devnull, "w", encoding="utf-8")


@contextmanager
def training(wanted: bool = True) -> Iterator[None]:
    """Set modules to training as around the script's loop: it may turn to its gradients where none
    are recorded.
    """
    with torch.inference_mode(False), torch.set_grad_enabled(wanted):
        yield


@contextmanager
def schedules_rest() -> Iterator[None]:
    """Hold schedules of learning rates still, but for those that are made meanwhile.

    They stand where the microbatch has them that is executed: code that passes earlier ones on its
    way to it would move them on.
    """
    kinds = [
        kind
        for kind in vars(torch.optim.lr_scheduler).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler)
    ]
    steps = [(kind, vars(kind)["step"]) for kind in kinds if "step" in vars(kind)]
    made: list[Any] = []
    for kind, step in steps:
        setattr(kind, "step", _resting(step, made))  # noqa: B010  # a method, to mypy
    try:
        yield
    finally:
        for kind, step in steps:
            setattr(kind, "step", step)  # noqa: B010


def _resting(step: Callable[..., None], made: list[Any]) -> Callable[..., None]:
    @functools.wraps(step)
    def rest(schedule: Any, *args: Any, **kwargs: Any) -> None:
        if "_last_lr" not in vars(schedule):  # it takes its first step as it is made
            made.append(schedule)
        if any(one is schedule for one in made):
            step(schedule, *args, **kwargs)

    return rest


@contextmanager
def optimizers_rest(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """Reduce an update to the closure that it is given.

    Code that is executed again may come by an update of the transaction before (a discriminator's,
    or the first half of SAM), which has been made.
    """
    kept = [(vars(one), _updates(one)) for one in list(optimizers)]
    before = [{n: own[n] for n in names if n in own} for own, names in kept]
    for own, names in kept:
        own.update(dict.fromkeys(names, functools.partial(_rest, own)))
    try:
        yield
    finally:
        for (own, names), known in zip(kept, before, strict=True):
            for name in names:
                own.pop(name, None)
            own.update(known)


def _updates(optimizer: torch.optim.Optimizer) -> list[str]:
    """Methods of an optimizer that make a step, or a part of one."""
    kinds = [kind for kind in type(optimizer).__mro__ if kind is not object]
    found = {name for kind in kinds for name in vars(kind) if _is_update(name)}
    return sorted(found)


def _is_update(name: str) -> bool:
    return name == "step" or name.endswith("_step") and not name.startswith("_")


def _rest(attributes: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Call the closure as often as torch's LBFGS may in one step (`max_eval`): where an earlier
    call has not come to the backward that is looked for, a later one does.
    """
    closure = kwargs.get("closure", args[0] if args else None)
    if not callable(closure):
        return None
    groups = attributes.get("param_groups") or [{}]
    result = closure()
    for _ in range(int(groups[0].get("max_eval") or 1) - 1):
        result = closure()
    return result


class _Look:
    """Notes how to put back what it finds."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self._seen: set[int] = set()
        self._left = ENTRIES
        self.undo: list[Undo] = []

    def at_names(self, names: dict[str, Any]) -> None:
        self._note_attributes(names)
        for name, value in list(names.items()):
            if not name.startswith("__"):
                self._at(value, DEPTH)

    def at_groups(self, optimizer: torch.optim.Optimizer) -> None:
        """Learning rates and the like, of all groups of parameters."""
        for group in optimizer.param_groups:
            options = {name: value for name, value in group.items() if name != "params"}
            self._note_attributes(group)
            self._each(options.values(), 2)

    def at_frozen(self, parameters: Mapping[int, torch.Tensor], trained: set[int]) -> None:
        frozen = [one for number, one in parameters.items() if number not in trained]
        if sum(one.numel() * one.element_size() for one in frozen) <= FROZEN_BYTES:
            for one in frozen:
                if type(one.detach()) is torch.Tensor and not one.is_inference():
                    self._note_tensor(one)

    def _at(self, value: Any, depth: int) -> None:
        if type(value) is type and value.__module__ in self._own:
            self._at_class(value)
        if type(value) in CODE or id(value) in self._seen or not depth or self._left <= 0:
            return
        if isinstance(value, CONTAINERS):
            self._at_container(value, depth)
        elif type(value) is tuple:
            self._each(value, depth)
        elif type(value) is torch.Tensor:
            if _is_small(value):
                self._seen.add(id(value))
                self._note_tensor(value)
        elif is_plain_array(value):
            self._note_array(value)
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler) or is_own(value, self._own):
            self._seen.add(id(value))
            self._note_attributes(vars(value))
            self._each(list(vars(value).values()), depth)

    def _each(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            self._left -= 1
            self._at(value, depth - 1)

    def _at_class(self, kind: type) -> None:
        if id(kind) in self._seen:
            return
        self._seen.add(id(kind))
        values = {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")
        }
        self._each(values.values(), DEPTH)

        def undo() -> None:
            for name, value in values.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)

        self.undo.append(undo)

    def _at_container(self, value: Any, depth: int) -> None:
        self._seen.add(id(value))
        if len(value) > VERY_LONG:
            return
        keys, values = _content(value)
        if len(value) <= LONG:
            self._each(values, depth)

        def undo() -> None:
            if not all(map(_identical, _content(value), (keys, values))):
                value.clear()
                if isinstance(value, dict):
                    for key, one in zip(keys, values, strict=True):
                        value[key] = one  # a Counter's update() would count
                else:
                    (value.update if isinstance(value, set) else value.extend)(values)

        self.undo.append(undo)

    def _note_attributes(self, attributes: dict[str, Any]) -> None:
        known = dict(attributes)

        def undo() -> None:
            for name in attributes.keys() - known.keys():
                del attributes[name]
            for name, value in known.items():
                if attributes.get(name, known) is not value:
                    attributes[name] = value

        self.undo.append(undo)

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        version, value, place = tensor._version, tensor.detach().clone(), tensor.data_ptr()

        def undo() -> None:
            if tensor._version != version and tensor.data_ptr() == place:
                with torch.no_grad():
                    tensor.copy_(value)

        self.undo.append(undo)

    def _note_array(self, array: Any) -> None:
        self._seen.add(id(array))
        if array.nbytes > SMALL_BYTES or not array.flags.writeable or array.dtype.hasobject:
            return
        value = array.copy()

        def undo() -> None:
            array[...] = value

        self.undo.append(undo)


def _content(container: Any) -> tuple[list[Any], list[Any]]:
    """Keys, if it has any, and values."""
    if isinstance(container, dict):
        held = dict(container.items())  # in one go: another thread may change it meanwhile
        return list(held), list(held.values())
    return [], list(container)


def _identical(now: list[Any], before: list[Any]) -> bool:
    """True if they are, entry for entry, the same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _is_small(tensor: torch.Tensor) -> bool:
    if tensor.requires_grad or tensor.is_inference() or tensor.layout is not torch.strided:
        return False
    return tensor.device.type != "meta" and tensor.numel() * tensor.element_size() <= SMALL_BYTES
