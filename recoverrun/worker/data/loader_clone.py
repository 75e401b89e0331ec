"""Copies of data loaders, with the samplers of another rank."""

import copy
import functools
import inspect
import weakref
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any, ClassVar, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data import object_copy
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng import object_generators
from rendezvous.protocol.layout import Layout

COUNT_NAMES = ("num_replicas", "num_processes", "dp_world_size", "world_size")
RANK_NAMES = ("rank", "process_index", "dp_rank")
WORKERS_WITHIN_S = 60.0
"""A batch of another rank's worker processes that takes longer is given up."""

SAMPLER_NAMES = ("batch_sampler", "sampler", "base_sampler", "_sampler")


T = TypeVar("T")

ON = "goes on from pass to pass, and where it stands on another rank cannot be told"

UNSEEN: frozenset[int] = frozenset()

Place = tuple[int, int]
"""Among how many, or 0 where that is not said, and which: what an object carries as its rank."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Two ranks, one of which is impersonated; samplers may count replicas, not ranks.

    Or anything between: where ranks of one tensor-parallel group read the same data, a sampler
    counts such groups. So `told` goes first: what the other carries where we carry such a place.
    """

    own: int
    other: int
    layout: Layout | None = None
    told: Mapping[Place, int] = field(default_factory=dict)

    def of(self, owner: Any, carried: int) -> int:
        """What stands in the place of `carried`, the rank that the object `owner` carries."""
        layout, count = self.layout, _count(owner)
        if (count, carried) in self.told:
            return self.told[count, carried]
        if layout is not None and layout.shards > 1 and count == len(layout.replicas):
            own = layout.slot(self.own)
            return layout.slot(self.other) if carried == own else carried
        return self.other if carried == self.own else carried


def apart(owner: T) -> T:
    """A shallow copy with attributes of its own: some `__setstate__` keep those of `owner`."""
    twin = copy.copy(owner)
    if vars(twin) is vars(owner):
        object.__setattr__(twin, "__dict__", dict(vars(owner)))
    return twin


def _count(owner: Any) -> int:
    counts = [vars(owner)[name] for name in COUNT_NAMES if name in vars(owner)]
    return counts[0] if counts and type(counts[0]) is int else 0


def places(loader: "DataLoader[Any]") -> tuple[Place, ...]:
    """Of everything below `loader` that carries a rank, in a fixed order."""
    found = [place for sampler in samplers_of(loader) for place in _places_of(sampler)]
    if isinstance(loader.dataset, IterableDataset):
        found += _places_within(loader.dataset, depth=2)
    return tuple(found)


def _places_of(owner: Any) -> list[Place]:
    """The names and kinds are those that `own_samplers` and `_stream_as` replace."""
    carried = [vars(owner)[name] for name in RANK_NAMES if type(vars(owner).get(name)) is int]
    return [(_count(owner), one) for one in carried]


def _places_within(owner: Any, depth: int) -> list[Place]:
    found = _places_of(owner)
    for value in list(vars(owner).values()):
        if depth and hasattr(value, "__dict__") and _carries_rank(value, depth - 1):
            found += _places_within(value, depth - 1)
    return found


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


class Kept:
    """A stream as it stands now, as an iterator of it is made, whatever becomes of it.

    The first one stands where the script has put it, on all ranks alike. Where it does not stand
    there again in a further pass, it has moved by itself, and on another rank elsewhere perhaps.
    """

    _first: ClassVar[list[tuple[weakref.ref[Any], bytes]]] = []

    def __init__(self, data: Any) -> None:
        self._name, self._reason = type(data).__name__, ""
        try:
            self._twin = object_copy.copied(data)
        except object_copy.Unmovable as error:
            self._reason = f"holds {error}"
            return
        now = object_copy.stands(self._twin)
        Kept._first = [one for one in Kept._first if one[0]() is not None]
        first = [stood for known, stood in Kept._first if known() is data]
        if not first:
            Kept._first.append((weakref.ref(data), now))
        elif first[0] != now:
            self._reason = ON

    def again(self) -> Any:
        """One that stands there. Raises NotReplayable."""
        if self._reason:
            raise NotReplayable(f"the iterable data set {self._name} {self._reason}")
        return object_copy.copied(self._twin)


def clone_for(
    loader: "DataLoader[Any]",
    ranks: Ranks,
    stream: Kept | None = None,
    seen: Container[int] = UNSEEN,
) -> "DataLoader[Any]":
    """A loader over the same data set whose samplers are the other rank's. A map-style one has no
    worker processes yet: they need not begin with its first row (`loader_workers`).

    What data set and samplers hold is copied, so that the script's stays as it is, but for objects
    whose identities are `seen`: those are put in place and back by others.

    An iterable data set is copied, with the rank that it carries replaced, and read from its
    beginning; by worker processes if the loader has them, as only there are their seeds, their
    shares, and a data set for each of them. `stream` is read in its place, if one is given. Raises
    NotReplayable where that cannot be the same.
    """
    clone = in_process(loader, own_samplers(loader, ranks))
    vars(clone)["worker_init_fn"] = _begun_as(loader.worker_init_fn, ranks)
    _part(clone, loader, seen)
    if not isinstance(loader.dataset, IterableDataset):
        return clone
    data = loader.dataset if stream is None else stream.again()
    vars(clone)["dataset"] = _stream_as(data, ranks, depth=2)
    return staffed(clone, loader)


def _part(clone: "DataLoader[Any]", loader: "DataLoader[Any]", seen: Container[int]) -> None:
    """Give `clone`, whose samplers are copies, what it may move while it reads in this process.

    Worker processes read what they get by being forked.
    """
    data, parts = loader.dataset, object_copy.Copying(strict=False, seen=seen)
    if isinstance(data, IterableDataset) or loader.num_workers:
        parts.share(data)
    if not loader.num_workers:
        vars(clone).update(dataset=parts.of(data), collate_fn=parts.of(loader.collate_fn))
    vars(clone)["generator"] = parts.of(loader.generator)  # a sampler may have the same one
    for sampler in samplers_of(clone):
        for name, value in vars(sampler).items():
            if name not in SAMPLER_NAMES:
                vars(sampler)[name] = parts.of(value)


def _begun_as(function: Any, ranks: Ranks) -> Any:
    """What begins a worker process, with the ranks that it carries replaced: words given to it, as
    transformers and Lightning do, and variables around it or of its module.
    """
    if isinstance(function, functools.partial):
        words = _spoken(function.keywords, ranks)
        return functools.partial(_begun_as(function.func, ranks), *function.args, **words)
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__
    around = inspect.getclosurevars(function)
    known, held = _spoken(around.globals, ranks), _spoken(around.nonlocals, ranks)
    if known == around.globals and held == around.nonlocals:
        return function
    cells = tuple(
        CellType(held[name]) if name in held else cell
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    )
    names = {**function.__globals__, **known}
    made = FunctionType(code, names, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _spoken(names: Mapping[str, Any], ranks: Ranks) -> dict[str, Any]:
    """`names` with our rank replaced, where one of them is that."""
    return {
        name: ranks.other
        if name in (*RANK_NAMES, "global_rank") and type(value) is int and value == ranks.own
        else value
        for name, value in names.items()
    }


def _stream_as(owner: Any, ranks: Ranks, depth: int) -> Any:
    """A shallow copy of `owner` and of the objects in it, with the ranks that they carry replaced.

    Raises NotReplayable if it has a generator of its own: the copy would draw from the same one,
    or from one that is not where it was. Also if it has what processes share: who waits at a
    barrier for all readers must not meet one more.
    """
    twin = apart(owner)
    for name, value in vars(owner).items():
        if _is_shared(value):
            raise NotReplayable(
                f"the iterable data set {type(owner).__name__} shares {name} with other processes"
            )
        if object_generators.is_generator(value):
            raise NotReplayable(f"the iterable data set {type(owner).__name__} has a generator")
        if name in RANK_NAMES and type(value) is int:
            object.__setattr__(twin, name, ranks.of(owner, value))
        elif depth and hasattr(value, "__dict__") and _carries_rank(value, depth - 1):
            object.__setattr__(twin, name, _stream_as(value, ranks, depth - 1))
    return twin


def has_shared(owner: Any) -> bool:
    """Has it anything that processes share?"""
    return any(map(_is_shared, list(getattr(owner, "__dict__", {}).values())))


def _is_shared(value: Any) -> bool:
    """A lock, barrier, queue or memory of several processes, as `multiprocessing` makes them, or
    one of that name, as libraries for streaming do (`SharedBarrier`, `FileLock`)."""
    kind = type(value)
    made = kind.__module__.partition(".")[0] in ("multiprocessing", "_multiprocessing", "filelock")
    return made or kind.__name__.startswith("Shared") or "shm" in getattr(value, "__dict__", ())


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
        twin = copies[id(sampler)] = apart(sampler)
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


def staffed(clone: "DataLoader[Any]", loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """Like `clone`, a copy of `loader`, with as many worker processes as that has, of its own."""
    if not loader.num_workers:
        return clone
    made = apart(clone)
    vars(made).update(
        {
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "timeout": max(loader.timeout, WORKERS_WITHIN_S),
        }
    )
    return made


def in_process(loader: "DataLoader[Any]", samplers: dict[str, Any]) -> "DataLoader[Any]":
    """A copy of `loader` with these samplers, without workers."""
    clone = apart(loader)
    vars(clone).update(samplers)
    alone = {
        "_iterator": None,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "persistent_workers": False,
        "timeout": 0,
        "next_iter_state": None,  # of torchdata's, as the one below
        "_initial_iter_for_state_dict": False,
    }
    vars(clone).update({name: value for name, value in alone.items() if name in vars(loader)})
    return clone
