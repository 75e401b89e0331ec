"""Another rank's batches of a map-style data set, read by worker processes as the script's own are.

What a data set does in a worker process it must not do in the script's: a file that it opens there
on first use would be one file for all workers forked later, and random numbers come from the seed
of each worker. So a copy of a loader that has worker processes has its own. Each item says whether
anything was drawn for it. As long as nothing is, workers begin in the midst of the order of data;
else they begin where the rank's did, and read everything again. Streams are always read so.

Each item also says where the generators of its process stood then: by that ranks find out whether
the script seeds them by something that a copy does not know (`worker_seed_check`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from recoverrun.worker.data.loader_clone import with_workers
from recoverrun.worker.data.object_copy import shallow_copy
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng import object_generators
from recoverrun.worker.rng.host_streams import read_hosts
from recoverrun.worker.rng.object_generators import State, generators_in, is_at
from recoverrun.worker.rng.streams import tensor_bytes

GIVEN_UP = ("DataLoader timed out", "DataLoader worker (pid")
"""How messages of torch begin where worker processes gave nothing in time, or are gone."""

INHERITED = "the data set {} draws from a generator of its own in worker processes"


@dataclass(frozen=True, slots=True)
class WorkerItem:
    """An item as a worker process gives it."""

    item: Any
    drew: bool  # numbers for it or for one before it, from what the worker's seed determines
    inherited: bool  # from a generator that stood in the process which began the worker
    made: bool  # a generator that was not there when the worker had begun
    state: bytes  # digest of where all generators stand now, but inherited ones


@dataclass(frozen=True, slots=True)
class GeneratorTrace:
    """Where the generators of a worker process stood after item `index`."""

    index: int
    state: bytes
    drew: bool
    made: bool  # one of them by the data set, in that process

    @staticmethod
    def of(index: int, read: WorkerItem) -> "GeneratorTrace":
        return GeneratorTrace(index, read.state, read.drew, read.made)

    def pack(self) -> list[Any]:
        """Plain values for msgpack, in the order of the fields."""
        return [self.index, self.state, self.drew, self.made]


class FixedOrder:
    """In place of a sampler: what is still to come of its indices."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices


class DrawWatch:
    """In a worker process: what is drawn there from the moment on when the script's own
    `worker_init_fn` is done. Both methods stand in for the loader's own functions.
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
        known = [id(one) for one, _ in self._inherited]
        self._seeded = object_generators.states_of(
            one for one in _generators() if id(one) not in known
        )
        self._streams = _streams()

    def collate(self, rows: Any) -> WorkerItem:
        item = self._collated(rows)
        inherited = [id(one) for one, _ in self._inherited]
        seeded = [id(one) for one, _ in self._seeded]
        here = [one for one in _generators() if id(one) not in inherited]
        made, streams = any(id(one) not in seeded for one in here), _streams()
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
    """Where in `order` reading begins to have item `index`, and the order from there on.

    Worker processes take turns, so each gets what the rank's of its number got: that is where a
    data set asks which one it is.
    """
    first = index - index % workers if by_rows else 0
    return first, islice(order, first, None)


def with_workers_in_order(
    loader: "DataLoader[Any]",
    clone: "DataLoader[Any]",
    order: Iterator[Any],
    generator: torch.Generator | None,
) -> "DataLoader[Any]":
    """Like `clone`, a copy of `loader`, in this order and with worker processes, whose seeds come
    from `generator`. It gives a `WorkerItem` for each item.
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
    """Like `clone`, which has worker processes; it gives a `WorkerItem` for each item."""
    watch, made = DrawWatch(clone), shallow_copy(clone)
    vars(made).update({"worker_init_fn": watch.begin, "collate_fn": watch.collate})
    return made


class CheckedItems:
    """The items that are in the `WorkerItem`s of a watched loader, if `believe` raises nothing."""

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


def next_item(items: Iterator[Any], data: Any) -> Any:
    """Raises NotReplayable where worker processes fail us, StopIteration, or what `data` does."""
    try:
        return next(items)
    except RuntimeError as error:
        if not str(error).startswith(GIVEN_UP):
            raise
        raise NotReplayable(
            f"worker processes gave no batch of {type(data).__name__} for another rank: {error}"
        ) from error


def checked(read: WorkerItem, data: Any) -> WorkerItem:
    """Raises NotReplayable if numbers were drawn for it from what cannot be told."""
    if read.inherited:
        raise NotReplayable(INHERITED.format(type(data).__name__))
    return read


def _generators() -> list[Any]:
    """Those of the data set, in a worker process."""
    worker = get_worker_info()
    assert worker is not None, "in a worker process"
    return generators_in(worker.dataset)


def _streams() -> tuple[bytes, ...]:
    """Of the process. Not CUDA's, which a forked one must not touch."""
    return tensor_bytes(torch.get_rng_state()), *read_hosts().values()


def _moved(states: list[tuple[Any, State]]) -> bool:
    return any(not is_at(*pair) for pair in states)


def _digest(streams: tuple[bytes, ...], generators: list[Any]) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (*streams, *map(object_generators.state_of, generators)):
        digest.update(tensor_bytes(part) if isinstance(part, torch.Tensor) else part)
    return digest.digest()
