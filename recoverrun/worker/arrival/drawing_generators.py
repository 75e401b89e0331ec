"""Generators of the script's that draw random numbers, on the way to a lost rank's place.

Survivors resume such a generator with another rank's streams: a proof has shown that this gives
that rank's items, so no item depends on what is one rank's own in its state. A newcomer passes the
items from the streams with which the donor's began, takes its present item with its own streams,
and puts the donor's state in place. Survivors compare that item, as any, before the step counts.
That the state is taken is tried in a copy of the donor, before the run promises it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from recoverrun.worker.arrival import generator_states
from recoverrun.worker.arrival.generator_states import Below
from recoverrun.worker.arrival.iterator_places import HeldIterator, Hold
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.arrival.slot_sources import DRAWS
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import Streams, restore_streams
from recoverrun.worker.tracking.microbatches import LoopFrame

Told = list[list[Any]]
"""Of each its name, the states of the generators below, and the streams as these began."""

Tries = Callable[[Sequence[Below]], None]


def drawing(stack: Sequence[LoopFrame], there: Holdings, own: frozenset[str]) -> list[Below]:
    """Those that draw by themselves, and not to read from a loader."""
    found = generator_states.below(stack, there, own)
    return [
        one
        for one in found
        if not one.loads and any(each.source and each.source.draws for each in one.found)
    ]


def told(found: Sequence[Below], packing: Packing, tries: Tries) -> Told:
    """Plain values for msgpack. `tries` raises NotReachable where nobody would come there."""
    if found:
        tries(found)
    return [[one.name, generator_states.told(one.found, packing), _began(one)] for one in found]


def begin(said: Told, name: str) -> None:
    """Items of what has this name are about to be passed, from where it began there."""
    for one, _, began in said:
        if one == name and began is not None:
            restore_streams(Streams.unpack(began))


def put(
    said: Told,
    found: Sequence[Below],
    tensors: Sequence[torch.Tensor],
    here: Sequence[torch.Tensor],
    drew: Sequence[Below],
) -> None:
    """Put their states in place, in what is `found` here. `drew` is what has drawn numbers as its
    items were passed. `here`: see `packing.unpack`. Raises NotReachable where the others have not
    told of one of these.
    """
    present = {one.name: one.found for one in found}
    known: set[int] = set()
    for name, states, _ in said:
        generator_states.put(states, present.get(name, []), tensors, here)
        for each in present.get(name, []):
            known.add(id(each.one))
    for one in drew:
        if not one.found or any(id(each.one) not in known for each in one.found):
            raise NotReachable(DRAWS.format(kind=one.name))


def drew(iterators: Sequence[Any], own: frozenset[str]) -> list[Below]:
    """The generators below these iterators, by the name of each iterator's kind."""
    return [
        replace(
            generator_states.under(one, own),
            name=getattr(one, "__qualname__", "") or type(one).__name__,
        )
        for one in iterators
    ]


def holding(said: Told, there: Holdings, hold: Hold) -> Hold:
    """The same as `hold`, for what a newcomer holds `there`."""
    names = {id(one): path for path, one in (*there.iterators, *there.sources)}

    def held(one: HeldIterator, present: Any, visible: Mapping[str, Any]) -> Any:
        begin(said, names.get(id(present), ""))
        return hold(one, present, visible)

    return held


def _began(one: Below) -> Any:
    began = [each.source.began for each in one.found if each.source is not None]
    return next((streams.pack() for streams in reversed(began) if streams is not None), None)
