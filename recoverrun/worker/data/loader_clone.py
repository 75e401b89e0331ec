"""Copies of data loaders that give what the loader of another rank gives."""

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any

from torch import multiprocessing
from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.object_copy import ObjectCopier
from recoverrun.worker.data.rank_substitution import (
    RankPair,
    copied_samplers,
    rows_as,
    stream_as,
    worker_init_as,
)
from recoverrun.worker.data.samplers import SAMPLER_NAMES, samplers_of
from recoverrun.worker.data.shallow_copy import shallow_copy

WORKER_TIMEOUT_S = 30.0
"""The time limit for a batch of another rank's worker processes. A sample that hangs them is
given up before this rank is taken for one that hangs (`rendezvous.membership.hang_limits`).
"""

UNSEEN: frozenset[int] = frozenset()


def clone_for(
    loader: "DataLoader[Any]",
    ranks: RankPair,
    snapshot: IterableSnapshot | None = None,
    seen: Container[int] = UNSEEN,
    theirs: Mapping[str, Any] = MappingProxyType({}),
) -> "DataLoader[Any]":
    """Return a loader over the same data set whose samplers are the other rank's.

    What data set and samplers hold is copied, so that the script's objects stay as they are, except
    for objects whose identities are `seen`: others put those in place and back.

    A data set, or `snapshot` if it is given, is copied with the rank that it carries replaced. A
    map-style one gets no worker processes yet: they need not begin with its first row
    (`loader_workers`). An iterable one is read from its beginning, with the attributes that are
    `theirs`. If the loader has worker processes, they read it, since seeds and shares are theirs.
    Raises NotReplayable if the data cannot be the same.
    """
    clone = without_workers(loader, copied_samplers(loader, ranks))
    vars(clone)["worker_init_fn"] = worker_init_as(loader.worker_init_fn, ranks)
    _isolate(clone, loader, seen)
    if not isinstance(loader.dataset, IterableDataset):
        _read_rows(clone, rows_as(clone.dataset, ranks))
        return clone
    data = loader.dataset if snapshot is None else snapshot.restored()
    if theirs:
        data = data if snapshot is not None else shallow_copy(data)
        parts = ObjectCopier(strict=False, seen=seen)
        vars(data).update({name: parts.of(value) for name, value in theirs.items()})
    vars(clone)["dataset"] = stream_as(data, ranks)
    return with_workers(clone, loader)


def _isolate(clone: "DataLoader[Any]", loader: "DataLoader[Any]", seen: Container[int]) -> None:
    """Give `clone`, whose samplers are copies, copies of all that reading in this process may move.

    Worker processes are forked (`with_workers`), and so have copies in any case.
    """
    data, parts = loader.dataset, ObjectCopier(strict=False, seen=seen)
    if isinstance(data, IterableDataset) or loader.num_workers:
        parts.share(data)
    if not loader.num_workers:
        vars(clone).update(dataset=parts.of(data), collate_fn=parts.of(loader.collate_fn))
    vars(clone)["generator"] = parts.of(loader.generator)  # a sampler may have the same one
    for sampler in samplers_of(clone):
        for name, value in vars(sampler).items():
            if name not in SAMPLER_NAMES:
                vars(sampler)[name] = parts.of(value)


def _read_rows(clone: "DataLoader[Any]", data: Any) -> None:
    """Let `clone`, whose samplers are copies, read the map-style `data`."""
    before = clone.dataset
    vars(clone)["dataset"] = data
    for sampler in samplers_of(clone):
        for name, value in vars(sampler).items():
            if value is before:
                vars(sampler)[name] = data


def keeps_workers(loader: "DataLoader[Any]") -> bool:
    """True if the next iterator over `loader` has the worker processes of the one before.

    An iterator may have no length, so that it is no truth value.
    """
    state = vars(loader)
    return bool(state.get("persistent_workers")) and state.get("_iterator") is not None


def with_workers(clone: "DataLoader[Any]", loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """Return a loader like `clone`, a copy of `loader`, with as many worker processes.

    They are forked, whatever the script has for its own: samplers and data sets that carry another
    rank are nothing to pickle, and a spawned process would import torch before its first item. A
    copy of this process, in which they may be read, has no helper that begins such ones.
    """
    if not loader.num_workers:
        return clone
    made = shallow_copy(clone)
    vars(made).update(
        {
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "timeout": max(loader.timeout, WORKER_TIMEOUT_S),
            "_DataLoader__multiprocessing_context": multiprocessing.get_context("fork"),
        }
    )
    return made


def without_workers(loader: "DataLoader[Any]", samplers: dict[str, Any]) -> "DataLoader[Any]":
    """Return a copy of `loader` with these samplers, without worker processes."""
    clone = shallow_copy(loader)
    vars(clone).update(samplers)
    settings = {
        "_iterator": None,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "persistent_workers": False,
        "timeout": 0,
        "next_iter_state": None,  # of torchdata's, as the one below
        "_initial_iter_for_state_dict": False,
    }
    vars(clone).update({name: value for name, value in settings.items() if name in vars(loader)})
    return clone
