"""Another rank's batches of a map-style data set, read by worker processes as the script's own are.

What a data set does in a worker process it must not do in the script's: a file that it opens there
on first use would be one file for all workers forked later, and random numbers come from the seed
of each worker. So a copy of a loader that has worker processes has its own. Each item says whether
anything was drawn for it. As long as nothing is, workers begin in the midst of the order of data;
else they begin where the rank's did, and read everything again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from recoverrun.hooks import ownrng, rng
from recoverrun.hooks.clones import NotReplayable, staffed
from recoverrun.hooks.ownrng import State

GIVEN_UP = ("DataLoader timed out", "DataLoader worker (pid")
"""How messages of torch begin where worker processes gave nothing in time, or are gone."""

INHERITED = "the data set {} draws from a generator of its own in worker processes"


@dataclass(frozen=True, slots=True)
class Read:
    """An item as a worker process gives it."""

    item: Any
    drew: bool  # numbers for it or for one before it, from what the worker's seed determines
    inherited: bool  # from a generator that stood in the process which began the worker


class Order:
    """In place of a sampler: what is still to come of its indices."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices


class Watch:
    """In a worker process: what is drawn there from the moment on when the script's own
    `worker_init_fn` is done. Both methods stand in for the loader's own functions.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._begun = loader.worker_init_fn
        self._collated = loader.collate_fn
        self._streams: tuple[Any, ...] = ()
        self._inherited: list[tuple[Any, State]] = []
        self._seeded: list[tuple[Any, State]] = []

    def begin(self, worker: int) -> None:
        inherited = ownrng.states_of(_generators())
        if self._begun is not None:
            self._begun(worker)
        self._inherited = [pair for pair in inherited if ownrng.stands_at(*pair)]
        known = [id(one) for one, _ in self._inherited]
        self._seeded = ownrng.states_of(one for one in _generators() if id(one) not in known)
        self._streams = _streams()

    def collate(self, rows: Any) -> Read:
        item = self._collated(rows)
        return Read(item, drew=self._drew(), inherited=_moved(self._inherited))

    def _drew(self) -> bool:
        known = [id(one) for one, _ in (*self._inherited, *self._seeded)]
        made_since = any(id(one) not in known for one in _generators())
        return made_since or _moved(self._seeded) or self._streams != _streams()


def indices_from(
    order: Iterator[Any], index: int, workers: int, *, by_rows: bool
) -> tuple[int, Iterator[Any]]:
    """Where in `order` reading begins to have item `index`, and the order from there on.

    Worker processes take turns, so each gets what the rank's of its number got: that is where a
    data set asks which one it is.
    """
    first = index - index % workers if by_rows else 0
    return first, islice(order, first, None)


def staffed_for(
    loader: "DataLoader[Any]",
    clone: "DataLoader[Any]",
    order: Iterator[Any],
    generator: torch.Generator | None,
) -> "DataLoader[Any]":
    """Like `clone`, a copy of `loader`, in this order and with worker processes, whose seeds come
    from `generator`. It gives a `Read` for each item.
    """
    watch = Watch(clone)
    made = staffed(clone, loader)
    place = "sampler" if loader.batch_sampler is None else "batch_sampler"
    vars(made).update(
        {
            place: Order(order),
            "generator": generator,
            "prefetch_factor": 1,  # few items of another rank are asked for
            "worker_init_fn": watch.begin,
            "collate_fn": watch.collate,
        }
    )
    return made


def next_of(items: Iterator[Any], data: Any) -> Any:
    """Raises NotReplayable where worker processes fail us, StopIteration, or what `data` does."""
    try:
        return next(items)
    except RuntimeError as error:
        if not str(error).startswith(GIVEN_UP):
            raise
        raise NotReplayable(
            f"worker processes gave no batch of {type(data).__name__} for another rank: {error}"
        ) from error


def opened(item: Any, data: Any) -> tuple[Any, bool]:
    """What is in a `Read`, and whether something was drawn for it; other items are as they are.

    Raises NotReplayable if it was drawn from what cannot be told.
    """
    if not isinstance(item, Read):
        return item, False
    if item.inherited:
        raise NotReplayable(INHERITED.format(type(data).__name__))
    return item.item, item.drew


def _generators() -> list[Any]:
    """Those of the data set, in a worker process."""
    worker = get_worker_info()
    assert worker is not None, "in a worker process"
    return ownrng.within(worker.dataset)


def _streams() -> tuple[Any, ...]:
    """Of the process. Not CUDA's, which a forked one must not touch."""
    return rng.tensor_bytes(torch.get_rng_state()), rng.read_hosts()


def _moved(states: list[tuple[Any, State]]) -> bool:
    return any(not ownrng.stands_at(*pair) for pair in states)
