"""Copies of data loaders, with the samplers of another rank; they work in this process."""

import copy
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from recoverrun.hooks import ownrng
from rendezvous.layout import Layout

COUNT_NAMES = ("num_replicas", "num_processes", "dp_world_size", "world_size")
RANK_NAMES = ("rank", "process_index", "dp_rank")
SAMPLER_NAMES = ("batch_sampler", "sampler", "base_sampler", "_sampler")


class NotReplayable(Exception):
    """This data source cannot be served for another slot; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Two ranks, one of which is impersonated; samplers may count replicas, not ranks."""

    own: int
    other: int
    layout: Layout | None = None

    def of(self, owner: Any, carried: int) -> int:
        """What stands in the place of `carried`, the rank that the object `owner` carries."""
        layout = self.layout
        if layout is not None and layout.shards > 1:
            counts = [vars(owner)[name] for name in COUNT_NAMES if name in vars(owner)]
            if counts and counts[0] == len(layout.replicas):
                own = layout.slot(self.own)
                return layout.slot(self.other) if carried == own else carried
        return self.other if carried == self.own else carried


def samplers_of(loader: "DataLoader[Any]") -> list[Any]:
    """Sampler objects below a loader, outermost first, each once."""
    found: list[Any] = []
    todo = [vars(loader).get(name) for name in ("batch_sampler", "sampler")]
    while todo:
        sampler = todo.pop(0)
        if sampler is None or not hasattr(sampler, "__dict__"):
            continue
        if any(sampler is known for known in found):
            continue
        found.append(sampler)
        todo += [vars(sampler).get(name) for name in SAMPLER_NAMES]
    return found


def clone_for(loader: "DataLoader[Any]", ranks: Ranks) -> "DataLoader[Any]":
    """A loader over the same data set whose samplers are the other rank's; works in-process.

    An iterable data set is copied, with the rank that it carries replaced, and read from its
    beginning. Raises NotReplayable where that cannot be the same stream.
    """
    clone = in_process(loader, own_samplers(loader, ranks))
    if isinstance(loader.dataset, IterableDataset):
        name = type(loader.dataset).__name__
        if loader.num_workers:
            raise NotReplayable(f"the iterable data set {name} is read by worker processes")
        vars(clone)["dataset"] = _stream_as(loader.dataset, ranks, depth=2)
    return clone


def _stream_as(owner: Any, ranks: Ranks, depth: int) -> Any:
    """A shallow copy of `owner` and of the objects in it, with the ranks that they carry replaced.

    Raises NotReplayable if it has a generator of its own: the copy would draw from the same one.
    """
    twin = copy.copy(owner)
    for name, value in vars(owner).items():
        if ownrng.is_generator(value):
            raise NotReplayable(f"the iterable data set {type(owner).__name__} has a generator")
        if name in RANK_NAMES and type(value) is int:
            object.__setattr__(twin, name, ranks.of(owner, value))
        elif depth and hasattr(value, "__dict__") and _carries_rank(value, depth - 1):
            object.__setattr__(twin, name, _stream_as(value, ranks, depth - 1))
    return twin


def _carries_rank(owner: Any, depth: int) -> bool:
    if isinstance(owner, type) or not hasattr(owner, "__dict__"):
        return False
    found = vars(owner)
    return any(type(found.get(name)) is int for name in RANK_NAMES) or bool(
        depth and any(_carries_rank(value, depth - 1) for value in list(found.values()))
    )


def own_samplers(loader: "DataLoader[Any]", ranks: Ranks | None) -> dict[str, Any]:
    """Copies of the samplers of `loader`, with the ranks that they carry replaced."""
    copies: dict[int, Any] = {}

    def copied(sampler: Any) -> Any:
        if id(sampler) in copies:
            return copies[id(sampler)]
        twin = copies[id(sampler)] = copy.copy(sampler)
        for name in SAMPLER_NAMES:
            below = vars(twin).get(name)
            if below is not None and hasattr(below, "__dict__"):
                vars(twin)[name] = copied(below)
        for name in RANK_NAMES:
            carried = vars(twin).get(name)
            if type(carried) is int and ranks is not None:
                vars(twin)[name] = ranks.of(twin, carried)
        return twin

    samplers = {name: vars(loader).get(name) for name in ("batch_sampler", "sampler")}
    return {
        name: copied(sampler) if hasattr(sampler, "__dict__") else sampler
        for name, sampler in samplers.items()
    }


def in_process(loader: "DataLoader[Any]", samplers: dict[str, Any]) -> "DataLoader[Any]":
    """A copy of `loader` with these samplers, without workers."""
    clone = copy.copy(loader)
    vars(clone).update(samplers)
    vars(clone).update(
        {
            "_iterator": None,
            "num_workers": 0,
            "prefetch_factor": None,
            "pin_memory": False,
            "persistent_workers": False,
            "timeout": 0,
        }
    )
    return clone
