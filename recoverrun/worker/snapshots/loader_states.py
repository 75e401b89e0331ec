"""Loaders that keep a state: a sampler that goes on from pass to pass, say, or an iterable data set
that draws random numbers for each item, both between those of training.

Begun anew and read as far, such a loader gives something else. So a snapshot has of the generators
and iterators below it what it has of those of the script (`generator_states`): a process that goes
back passes as many items, and then puts their variables in place. The items that loops hold are in
the snapshot, too, as those of the fresh process are others. That this leads to the same place is
tried first (`loader_trials`).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType, GeneratorType
from typing import Any

import torch

from recoverrun.worker.arrival import generator_states
from recoverrun.worker.arrival.generator_states import OF_LOOPS, Below, Stateful
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain, unpack
from recoverrun.worker.arrival.source_places import loader_iterators
from recoverrun.worker.data.late_items import Found, LateItems, hands_on
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_keepers import keepers_of
from recoverrun.worker.data.loader_opening import BegunOrder
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.data.source import Source
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.tracking.microbatches import LoopFrame

UNTOLD = "{} keeps a state, and what {} holds cannot be told"


class Roots:
    """The iterators from which one of torch takes rows: their places are told as of one that holds
    them.
    """

    def __init__(self, items: Any) -> None:
        order = items._sampler_iter
        self.order = order.rest if isinstance(order, BegunOrder) else order
        self.rows = getattr(getattr(items, "_dataset_fetcher", None), "dataset_iter", None)


def stateful_below(items: Any, own: frozenset[str]) -> list[Stateful]:
    """All below an iterator of torch that has a place, in an order that is the same in each
    process.
    """
    roots = Roots(items)
    found = [generator_states.under(one, own).found for one in (roots.order, roots.rows)]
    return [Stateful(roots, None), *itertools.chain(*found)]


def is_doubtful(one: LoaderIterator) -> bool:
    """True of one that has given items, and need not give the same once it begins anew."""
    if one.ended or not one.count or read_by(one) is None:
        return False
    if one.opening.created.resumed is not None:
        return False  # the script has loaded that state, and does so again
    if one.opening.is_iterable:
        return not one.loader.num_workers
    return bool(keepers_of(one.loader))


def read_by(one: LoaderIterator) -> Any:
    """The iterator of torch that gives its items. None if there is none, or if it is not known how
    many rows that was asked for.
    """
    own: Iterator[Any] | None = one.own
    if isinstance(own, LateItems):
        own = None if one.loader.num_workers else own.items
    workers = bool(one.loader.num_workers)
    return own if hasattr(own, "_send_idx" if workers else "_sampler_iter") else None


def told(
    keeping: Sequence[LoaderIterator], own: frozenset[str], packing: Packing
) -> list[list[Any]]:
    """Plain values for msgpack: the number of each, the states below it, and what the keepers of
    these held as it began.
    """
    return [
        [
            one.number,
            generator_states.told(stateful_below(read_by(one), own), packing),
            [_packed(held, packing) for held in one.opening.found],
        ]
        for one in keeping
    ]


def _packed(held: Mapping[str, Any], packing: Packing) -> list[list[Plain]]:
    found: list[list[Plain]] = []
    for name, value in held.items():
        try:
            found.append([name, packing.pack(value, name)])
        except CannotTravel:  # a type, say, which no item changes
            continue
    return found


def found_by(
    said: Iterable[Sequence[Any]], tensors: Callable[[], Sequence[torch.Tensor]]
) -> dict[int, Found]:
    """By the number of each what its keepers held as it began."""
    return {number: partial(_unpacked, held, tensors) for number, _, held in said}


def _unpacked(
    held: Sequence[Sequence[Sequence[Any]]], tensors: Callable[[], Sequence[torch.Tensor]]
) -> list[dict[str, Any]]:
    return [{name: unpack(packed, tensors()) for name, packed in one} for one in held]


def put(
    said: Iterable[Sequence[Any]],
    sources: Iterable[Source],
    own: frozenset[str],
    tensors: Sequence[torch.Tensor],
    here: Sequence[torch.Tensor],
) -> None:
    """Put the states of iterators in place that have passed their items. One that this process has
    not come to is one that the script has done with. Raises NotReachable.
    """
    present = {one.number: one for _, one in loader_iterators(sources)}
    for number, states, _ in said:
        if number in present:
            below = stateful_below(read_by(present[number]), own)
            generator_states.put(states, below, tensors, here)


def require(
    loaders: tuple[Sequence[LoaderIterator], frozenset[str]],
    stack: Sequence[LoopFrame],
    drawn: Sequence[Below],
    start: FrameType,
) -> list[str]:
    """The loops whose items come from these, named as in `generator_states`.

    Raises NotReachable if an item that the script, or a generator of its, holds cannot be told.
    """
    keeping, own = loaders
    if not keeping:
        return []
    known = set(map(id, keeping))
    loops = [
        f"{OF_LOOPS}{number}"
        for number, one in enumerate(stack)
        if not known.isdisjoint(map(id, generator_states.under(one.items, own).loaders))
    ]
    between = [one for each in drawn if each.loads for one in each.found if not _hands_on(one)]
    lacks = generator_states.untold_items(stack, start, (), loops)
    if lacks := [*lacks, *generator_states.untold(between)]:
        raise NotReachable(UNTOLD.format(name_of(keeping[0]), lacks[0]))
    return loops


def _hands_on(one: Stateful) -> bool:
    frame = one.one.gi_frame if isinstance(one.one, GeneratorType) else None
    return frame is not None and hands_on(frame)


def name_of(one: LoaderIterator) -> str:
    """The kinds of a loader, its data and what orders them, for a sentence."""
    kinds = [type(one.loader).__name__, type(one.loader.dataset).__name__]
    if not one.opening.is_iterable:
        kinds += [type(sampler).__name__ for sampler in samplers_of(one.loader)]
    by = f" by {kinds[-1]}" if kinds[2:] else ""
    return f"a {kinds[0]} over a {kinds[1]}{by}"
