"""The first elements of the smallest parameters, looked at for changes that no optimizer makes.

They are compared where they lie. What a GPU finds out is read once it is there: nobody waits for
it, so such a change is known some looks later.
"""

import weakref
from collections.abc import Sequence
from heapq import nsmallest
from typing import Any

import torch

from ft_collectives.communicators.tensor_bits import bits_of
from recoverrun.worker.arrival.sharded_tensors import local
from recoverrun.worker.rng.streams import tensor_bytes

WATCHED, ELEMENTS = 4, 1024


class WatchedElements:
    """Those of the parameters of a script's optimizers."""

    def __init__(self) -> None:
        self._groups: list[tuple[int, int]] = []  # lists of parameters, and their lengths
        self._watched: list[weakref.ref[torch.Tensor]] = []
        self._seen: list[Any] = []  # as bytes, or as tensors where they lie
        self._asked: list[_Answer] = []

    def forget(self) -> None:
        """Anything may come next."""
        self._seen, self._asked = [], []

    def changes(self, optimizers: Sequence[Any]) -> int:
        """Look again: the number of changes that have become known since the last look."""
        params = self._parameters(optimizers)
        away = any(one.is_cuda for one in params)
        if away and torch.cuda.is_current_stream_capturing():  # a graph would have all this in it
            self.forget()
            return 0
        now = [_elements(one) for one in params]
        before, self._seen = self._seen, now
        if len(before) != len(now):
            return 0
        pairs = list(zip(now, before, strict=True))
        here = any(one != other for one, other in pairs if isinstance(one, bytes))
        there = [pair for pair in pairs if isinstance(pair[0], torch.Tensor)]
        if there and not here:
            self._asked.append(_Answer(there))
        known = [one for one in self._asked if one.is_there]
        self._asked = [one for one in self._asked if one not in known]
        return here + sum(one.value for one in known)

    def _parameters(self, optimizers: Sequence[Any]) -> list[torch.Tensor]:
        lists = [group["params"] for one in optimizers for group in one.param_groups]
        groups = [(id(params), len(params)) for params in lists]
        known = [one for one in (ref() for ref in self._watched) if one is not None]
        rest = len(known) == len(self._watched) and all(one.requires_grad for one in known)
        if groups == self._groups and rest:
            return known
        trained = [one for params in lists for one in params if one.requires_grad]
        sizes = ((local(one).numel(), number) for number, one in enumerate(trained))
        least = nsmallest(WATCHED, (pair for pair in sizes if pair[0]))
        found = [trained[number] for _, number in least]
        self._groups, self._watched = groups, [weakref.ref(one) for one in found]
        self.forget()
        return found


class _Answer:
    """The answer of a device: True if one of these pairs differs."""

    def __init__(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        devices = {one.device: None for one, _ in pairs}
        self._values: list[torch.Tensor] = []
        self._events: list[torch.Event] = []
        for device in devices:
            mine = [(one, other) for one, other in pairs if one.device == device]
            differ = torch.stack([(one != other).any() for one, other in mine]).any()
            value = torch.empty((), dtype=torch.bool, pin_memory=True)
            value.copy_(differ, non_blocking=True)
            event = torch.Event(device)
            event.record()
            self._values.append(value)
            self._events.append(event)

    @property
    def is_there(self) -> bool:
        return all(event.query() for event in self._events)

    @property
    def value(self) -> bool:
        return any(map(bool, self._values))


def _elements(param: torch.Tensor) -> Any:
    first = local(param).reshape(-1)[:ELEMENTS]
    return tensor_bytes(first) if first.is_cpu else bits_of(first).clone()
