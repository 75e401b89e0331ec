"""The way back of one loader, gone in a copy of this process.

A process that goes back begins a loader's iterator anew, as this one began it, and passes as many
items (`data.late_items`). What comes next is compared with what came next here, and so is the place
of the generators below, if that can be told. A loader that does not come to the same place so may
come there if it is given its state (`loader_states`). Items that cannot be packed are not compared.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from recoverrun.worker.arrival import generator_states, inner_iterators
from recoverrun.worker.arrival.generator_states import Stateful
from recoverrun.worker.arrival.inner_iterators import same
from recoverrun.worker.arrival.packing import CannotTravel, Packing
from recoverrun.worker.context.values import is_simple
from recoverrun.worker.data.begun_iterators import begun, begun_again, order_anew
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_keepers import keepers_of
from recoverrun.worker.data.object_copy import attributes_of
from recoverrun.worker.data.put_back import Contents
from recoverrun.worker.errors import NotReachable, NotReplayable
from recoverrun.worker.rng.object_generators import State, generators_in, is_at, state_of
from recoverrun.worker.rng.streams import read_streams, restore_streams
from recoverrun.worker.snapshots.loader_states import UNTOLD, name_of, read_by, stateful_below

ORDERS, ITEMS = 256, 2
"""Of the rows and items to come, so many are compared."""

UNEQUAL = "{} gives something else once its items are passed again"

Alias = tuple[int, str, int, str]
"""A variable of a generator, and an attribute of a keeper: both are the same object."""


def tried(one: LoaderIterator, own: frozenset[str], keeps: bool = False) -> tuple[str, bool]:
    """Begin it anew, and pass its items. Returned is why that does not lead to where it is, or "",
    and whether its state has to be put in place for that: if it is known that it `keeps` one,
    nothing else is tried. All are moved on.
    """
    trial = _Trial(one, own)
    if not keeps and trial.leads_there():
        return "", False
    if one.loader.num_workers:
        return UNEQUAL.format(name_of(one)), False
    return trial.why_not(), True


class _Trial:
    """One iterator, read on, and what it gave."""

    def __init__(self, one: LoaderIterator, own: frozenset[str]) -> None:
        self._one, self._own = one, own
        self._items, self._before = read_by(one), read_streams()
        self._keepers = keepers_of(one.loader)
        self._contents = Contents(self._keepers)
        self._tensors: list[torch.Tensor] = []
        self._states: list[list[Any]] = []
        self._aliases: list[Alias] = []
        if not one.loader.num_workers:
            below = stateful_below(self._items, own)
            self._states = generator_states.told(below, Packing(self._tensors))
            self._tensors = [tensor.clone() for tensor in self._tensors]
            self._aliases = aliases(below, self._keepers)
        self._expected = self._next_of(self._items)

    def _next_of(self, items: Any) -> list[Any]:
        if self._one.opening.is_iterable:
            return list(islice(items, ITEMS))
        return list(islice(items._sampler_iter, ORDERS))

    def leads_there(self) -> bool:
        """True if it comes to the same place by itself: not by chance, as one may that draws."""
        one = self._one
        self._contents.put_back()
        own = [state_of(generator) for generator in self._of_keepers()]
        try:
            if one.loader.num_workers:
                items = order_anew(one)
                streams = read_streams()
                for _ in islice(items._sampler_iter, self._items._send_idx):
                    pass
            else:
                begun_here = begun(one, one.count, by_rows=True)
                items, streams = begun_here.items, read_streams()
                one.go_up_to(begun_here, one.count)
        except (NotReplayable, StopIteration):
            return False
        if read_streams() != streams or not self._are_at(own):
            return False
        if self._states and not self._is_told(stateful_below(items, self._own)):
            return False
        restore_streams(self._before)
        return not _differ(self._expected, self._next_of(items))

    def _of_keepers(self) -> list[Any]:
        """The generators that keepers have of their own."""
        return [own for keeper in self._keepers for own in generators_in(keeper)]

    def _are_at(self, states: Sequence[State]) -> bool:
        here = self._of_keepers()
        return len(here) == len(states) and all(map(is_at, here, states))

    def _is_told(self, below: Sequence[Stateful]) -> bool:
        """True if these are where those were, as far as that can be told."""
        here: list[torch.Tensor] = []
        said = generator_states.told(below, Packing(here))
        if any(untold for _, _, untold, _ in (*said, *self._states)):
            return True
        return said == self._states and inner_iterators.equal(here, self._tensors)

    def why_not(self) -> str:
        """The reason for which it does not come there if it is given its state; "" if it does."""
        one, states = self._one, self._states
        name = name_of(one)
        if untold := [lacks for _, _, names, _ in states for lacks in names]:
            return UNTOLD.format(name, untold[0])
        self._contents.put_back()
        restore_streams(self._before)
        try:
            items = begun_again(one, one.count, one.opening.found).items
            below = stateful_below(items, self._own)
            self._contents.put_back()
            generator_states.put(states, below, [tensor.clone() for tensor in self._tensors])
        except (NotReachable, NotReplayable, ValueError) as why:
            return str(why)
        same = self._is_told(below) and aliases(below, self._keepers) == self._aliases
        restore_streams(self._before)
        return (
            ""
            if same and not _differ(self._expected, self._next_of(items))
            else UNEQUAL.format(name)
        )


def _differ(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    pairs = zip(expected, found, strict=False)
    return len(expected) != len(found) or any(
        _is_packed(mine) and not same(mine, theirs) for mine, theirs in pairs
    )


def _is_packed(item: Any) -> bool:
    try:
        Packing([]).pack(item)
    except CannotTravel:
        return False
    return True


def aliases(below: Sequence[Stateful], keepers: Sequence[Any]) -> list[Alias]:
    """The objects that generators and keepers share: each sees what the other does to one."""
    held = {
        id(value): (number, name)
        for number, keeper in enumerate(keepers)
        for name, value in (attributes_of(keeper) or {}).items()
        if not is_simple(value)
    }
    return [
        (place, name, *held[id(value)])
        for place, one in enumerate(below)
        for name, value in sorted(generator_states.variables_of(one.one).items())
        if id(value) in held
    ]
