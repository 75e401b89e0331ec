"""Iterators of torch over a loader, begun once more where a slot began them.

The samplers and generators are those of the script: they move on with it, as the slot's do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from recoverrun.worker.data.loader_clone import with_workers, without_workers
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_keepers import give, keepers_of
from recoverrun.worker.data.loader_opening import UNSEEDED, RankIterator, begin_order
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.loader_workers import indices_from, watched, with_workers_in_order
from recoverrun.worker.data.put_back import Contents
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams, restore_streams

ENDED = "a loader over a {} ended before item {}, as its items were passed again"


def begun(source: LoaderIterator, index: int, *, by_rows: bool) -> RankIterator:
    """Begin the iterator of `source` where its slot began it, at item `index` or before.

    Its samplers and generators are those of the script: they move on with it, as the slot's do.
    Streams stay where they are, and generators, too, if it does not begin at its first item.
    With worker processes it gives a `WorkerItem` for each item. Raises NotReplayable.
    """
    loader, opening = source.loader, source.opening
    seeded = loader.num_workers and (opening.is_iterable or not by_rows)
    if seeded and opening.renewed:
        raise NotReplayable(UNSEEDED.format(type(loader.dataset).__name__))
    present = LoaderState.of(loader)
    try:
        put_state(loader, opening.created)
        if loader.num_workers:
            made = _with_workers(source, index, by_rows)
            source.go_up_to(made, index)  # they fetch ahead, as far as the slot's
            return made
        items: Any = source.make(loader)
        if opening.started is not None:
            put_state(loader, opening.started)
        before = read_streams()
        begin_order(items)
        drawn = LoaderState.of(loader)
        if index == 0:
            present = replace(drawn, streams=present.streams)
        return RankIterator(items, (before, drawn.streams))
    finally:
        put_state(loader, present)


def begun_again(
    source: LoaderIterator, index: int, found: Sequence[Mapping[str, Any]]
) -> RankIterator:
    """Begin it with its keepers as the slot `found` them, and pass `index` items, whatever these
    draw. Nothing else moves: the state that it has then is put in place by others.

    Raises NotReplayable.
    """
    keepers = keepers_of(source.loader)
    contents = Contents(keepers)
    give(keepers, found)
    source.opening.found = [dict(one) for one in found]  # should this process be asked for it
    try:
        made = begun(source, index, by_rows=True)
        pass_on(source, made, index)
    finally:
        contents.put_back()
    return made


def pass_on(source: LoaderIterator, made: RankIterator, index: int) -> None:
    """Pass items up to `index`, whatever these draw. Raises NotReplayable."""
    streams = read_streams()
    try:
        source.go_up_to(made, index, draws=True)
    except StopIteration:
        raise NotReplayable(ENDED.format(type(source.loader.dataset).__name__, index)) from None
    finally:
        restore_streams(streams)


def order_anew(source: LoaderIterator) -> Any:
    """An iterator of torch without worker processes that gives the order of data of `source`, from
    its beginning. Streams and generators are left where that brings them.
    """
    loader, opening = source.loader, source.opening
    put_state(loader, opening.created)
    items: Any = source.make(without_workers(loader, {}))
    if opening.started is not None:
        put_state(loader, opening.started)
    elif opening.renewed:  # it drew no seed
        put_state(loader, opening.created)
    begin_order(items)
    return items


def _with_workers(source: LoaderIterator, index: int, by_rows: bool) -> RankIterator:
    loader, opening = source.loader, source.opening
    created, streams = opening.created, read_streams()
    order: Any = source.make(without_workers(loader, {}))
    if opening.renewed:  # it drew no seed
        put_state(loader, created)
    begin_order(order)
    drawn = LoaderState.of(loader)
    restore_streams(created.streams)
    first, alone, workers = 0, without_workers(loader, {}), loader.num_workers
    if opening.is_iterable:
        made = watched(with_workers(alone, loader))
    else:
        first, indices = indices_from(order._sampler_iter, index, workers, by_rows=by_rows)
        made = with_workers_in_order(loader, alone, indices, created.loader_generator())
        vars(made)["prefetch_factor"] = loader.prefetch_factor
    vars(made)["timeout"] = loader.timeout  # they are the script's own
    items = source.make(made)
    put_state(loader, drawn)
    return RankIterator(items, (streams, streams), first)


def put_state(loader: "DataLoader[Any]", state: LoaderState) -> None:
    """Let the streams, and the loader's own generators and samplers, stand where they were."""
    restore_streams(state.streams)
    for generator in _generators(loader):
        if id(generator) in state.states:  # else it was not made yet
            generator.set_state(state.states[id(generator)])
    for sampler, (_, epoch) in zip(samplers_of(loader), state.samplers, strict=True):
        if epoch is not None:
            sampler.epoch = epoch


def _generators(loader: "DataLoader[Any]") -> list[torch.Generator]:
    held = [getattr(owner, "generator", None) for owner in (loader, *samplers_of(loader))]
    return [one for one in held if isinstance(one, torch.Generator)]
