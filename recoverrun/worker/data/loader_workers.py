"""Another rank's batches, read by worker processes of their own.

A data set must not do in the script's process what it does in a worker process: a file that it
opens there on first use would be one file for all workers forked later, and random numbers come
from the seed of each worker. So a copy of a loader with worker processes gets worker processes.

Each item says whether random numbers were drawn for it. As long as none are, workers begin in the
middle of the order of data; otherwise they begin where the rank's workers did, and read everything
again. An iterable data set is always read from its beginning.

Each item also holds a digest of the generators of its process. Ranks compare these to find out
whether the script seeds workers by something that a copy does not know (`worker_seed_check`).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch._C import (
    _remove_worker_pids,
    _set_worker_pids,
)
from torch.utils.data import DataLoader, get_worker_info

from recoverrun.worker.data.loader_clone import with_workers
from recoverrun.worker.data.shallow_copy import shallow_copy
from recoverrun.worker.data.worker_item import WorkerItem
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng import object_generators
from recoverrun.worker.rng.host_streams import read_hosts
from recoverrun.worker.rng.object_generators import State, generators_in, is_at
from recoverrun.worker.rng.streams import tensor_bytes

GIVEN_UP = ("DataLoader timed out", "DataLoader worker (pid")
"""Beginnings of torch's messages if worker processes gave nothing in time, or have died."""

DIED = "DataLoader worker (pid {}) has ended with code {}"

INHERITED = "the data set {} draws from a generator of its own in worker processes"


class FixedOrder:
    """Stands in for a sampler, and yields given indices."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices


class DrawWatch:
    """Finds out, in a worker process, what is drawn after the script's `worker_init_fn` has run.

    Its two methods stand in for the loader's `worker_init_fn` and `collate_fn`.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._begun = loader.worker_init_fn
        self._collated = loader.collate_fn
        self._streams: tuple[bytes, ...] = ()
        self._inherited: list[tuple[Any, State]] = []
        self._seeded: list[tuple[Any, State]] = []

    def begin(self, worker: int) -> None:
        inherited = object_generators.states_of(_generators())
        if self._begun is not None:
            self._begun(worker)
        self._inherited = [pair for pair in inherited if is_at(*pair)]
        known = [id(generator) for generator, _ in self._inherited]
        self._seeded = object_generators.states_of(
            generator for generator in _generators() if id(generator) not in known
        )
        self._streams = _streams()

    def collate(self, rows: Any) -> WorkerItem:
        item = self._collated(rows)
        inherited = [id(generator) for generator, _ in self._inherited]
        seeded = [id(generator) for generator, _ in self._seeded]
        here = [generator for generator in _generators() if id(generator) not in inherited]
        made, streams = any(id(generator) not in seeded for generator in here), _streams()
        return WorkerItem(
            item,
            drew=made or _moved(self._seeded) or self._streams != streams,
            inherited=_moved(self._inherited),
            made=made,
            state=_digest(streams, here),
        )


def indices_from(
    order: Iterator[Any], index: int, workers: int, *, by_rows: bool
) -> tuple[int, Iterator[Any]]:
    """Return from which item on `order` is read to get item `index`, and the order from there on.

    Worker processes take turns. Each one must get the items of the rank's worker of its number, as
    a data set may ask for that number.
    """
    first = index - index % workers if by_rows else 0
    return first, islice(order, first, None)


def with_workers_in_order(
    loader: "DataLoader[Any]",
    clone: "DataLoader[Any]",
    order: Iterator[Any],
    generator: torch.Generator | None,
) -> "DataLoader[Any]":
    """Return a loader like `clone`, in this order, with worker processes seeded by `generator`.

    `clone` is a copy of `loader`. The result gives a `WorkerItem` for each item.
    """
    made = watched(with_workers(clone, loader))
    place = "sampler" if loader.batch_sampler is None else "batch_sampler"
    vars(made).update(
        {
            place: FixedOrder(order),
            "generator": generator,
            "prefetch_factor": 1,  # few items of another rank are asked for
        }
    )
    return made


def watched(clone: "DataLoader[Any]") -> "DataLoader[Any]":
    """Return a loader like `clone`, which has worker processes, that gives `WorkerItem`s."""
    watch, made = DrawWatch(clone), shallow_copy(clone)
    vars(made).update({"worker_init_fn": watch.begin, "collate_fn": watch.collate})
    return made


class CheckedItems:
    """The items of a watched loader, as long as `believe` accepts them."""

    def __init__(
        self,
        items: Iterator[Any],
        loader: "DataLoader[Any]",
        believe: Callable[[Any, WorkerItem], None],
    ) -> None:
        self._items = items
        self._loader = loader
        self._believe = believe

    def __iter__(self) -> "CheckedItems":
        return self

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        data = self._loader.dataset
        read = checked(next_item(self._items, data), data)
        self._believe(self._loader, read)
        return read.item


def unreported(items: Iterator[Any]) -> Iterator[Any]:
    """Return `items`. If a worker process of theirs dies, nobody hears of it but `next_item`.

    Of worker processes that torch knows, it raises an error in the main thread at the moment in
    which one dies (`torch/utils/data/_utils/signal_handling.py`), whatever that thread is at. These
    read for another rank, ahead of what is asked for: a sample that ends them would end this rank.
    """
    if getattr(items, "_worker_pids_set", False):
        _remove_worker_pids(id(items))
        vars(items)["_worker_pids_set"] = False
    return items


def end_workers(items: Any) -> None:
    """End the worker processes of `items`, which nobody asks any more, if they are this process's.

    Otherwise Python may end them as it looks for circles of references. By then the queues that
    would tell them so are closed, and torch waits 5 s for each, whatever the script is at.
    """
    workers = getattr(items, "_workers", ())
    if workers and all(one._parent_pid == os.getpid() for one in workers):
        items._shutdown_workers()


@contextmanager
def _reporting(items: Iterator[Any]) -> Iterator[None]:
    """Within, the death of a worker process of `items` is raised, also one of before."""
    workers = getattr(items, "_workers", ())
    if not workers or getattr(items, "_worker_pids_set", True):
        yield
        return
    _set_worker_pids(id(items), tuple(process.pid for process in workers))
    try:
        for process in workers:
            if process.exitcode:
                raise RuntimeError(DIED.format(process.pid, process.exitcode))
        yield
    finally:
        _remove_worker_pids(id(items))


def next_item(items: Iterator[Any], data: Any) -> Any:
    """Return the next item. Raises NotReplayable if a worker process gives none in time or dies."""
    try:
        with _reporting(items):
            return next(items)
    except RuntimeError as error:
        if not str(error).startswith(GIVEN_UP):
            raise
        raise NotReplayable(
            f"worker processes gave no batch of {type(data).__name__} for another rank: {error}"
        ) from error


def checked(read: WorkerItem, data: Any) -> WorkerItem:
    """Return `read`. Raises NotReplayable if it took numbers from an inherited generator."""
    if read.inherited:
        raise NotReplayable(INHERITED.format(type(data).__name__))
    return read


def _generators() -> list[Any]:
    """Return the generators of the data set, in a worker process."""
    worker = get_worker_info()
    assert worker is not None, "in a worker process"
    return generators_in(worker.dataset)


def _streams() -> tuple[bytes, ...]:
    """Return the streams of the process, except CUDA's, which a forked process must not touch."""
    return tensor_bytes(torch.get_rng_state()), *read_hosts().values()


def _moved(states: list[tuple[Any, State]]) -> bool:
    return any(not is_at(*pair) for pair in states)


def _digest(streams: tuple[bytes, ...], generators: list[Any]) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (*streams, *map(object_generators.state_of, generators)):
        digest.update(tensor_bytes(part) if isinstance(part, torch.Tensor) else part)
    return digest.digest()
