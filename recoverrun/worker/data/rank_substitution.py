"""Another rank in the place of this one, in what a loader holds.

Samplers, data sets and functions that begin worker processes carry the rank of their process: as an
attribute, a keyword or a variable that is called `rank` or the like. Copies of them carry the other
rank instead.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

from torch.utils.data import DataLoader

from recoverrun.worker.data.samplers import RANK_NAMES, SAMPLER_NAMES, samplers_of
from recoverrun.worker.data.shallow_copy import shallow_copy
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng import object_generators
from rendezvous.protocol.layout import Layout

COUNT_NAMES = ("num_replicas", "num_processes", "dp_world_size", "world_size")
DEEPEST = 2
"""Levels of objects below a data set in which ranks are looked for."""

RankPlace = tuple[int, int]
"""What an object carries as its rank: among how many (0 if unknown), and which one."""


@dataclass(frozen=True, slots=True)
class RankPair:
    """This rank, and the one in its place; samplers may count replicas instead of ranks.

    They may also count groups between these: where the ranks of one tensor-parallel group read the
    same data, a sampler counts such groups. So `known` is asked first: what the other rank said it
    carries for a place of ours. Code that is executed as the other rank may have put that there
    already.
    """

    own: int
    other: int
    layout: Layout | None = None
    known: Mapping[RankPlace, int] = field(default_factory=dict)

    def of(self, owner: Any, carried: int) -> int:
        """Return what replaces `carried`, the rank that the object `owner` carries."""
        layout, count = self.layout, _count(owner)
        if (count, carried) in self.known:
            return self.known[count, carried]
        if any(place[0] == count and other == carried for place, other in self.known.items()):
            return carried
        if layout is not None and layout.shards > 1 and count == len(layout.replicas):
            own_slot = layout.slot(self.own)
            return layout.slot(self.other) if carried == own_slot else carried
        return self.other if carried == self.own else carried


def _count(owner: Any) -> int:
    counts = [vars(owner)[name] for name in COUNT_NAMES if name in vars(owner)]
    return counts[0] if counts and type(counts[0]) is int else 0


def rank_places(loader: "DataLoader[Any]") -> tuple[RankPlace, ...]:
    """Return the places of all objects below `loader` that carry a rank, in a fixed order."""
    places = [place for sampler in samplers_of(loader) for place in _places_of(sampler)]
    if hasattr(loader.dataset, "__dict__"):
        places += _places_within(loader.dataset, DEEPEST)
    return tuple(places)


def _places_of(owner: Any) -> list[RankPlace]:
    """Return those that `copied_samplers` and `_as_rank` replace."""
    carried = [vars(owner)[name] for name in RANK_NAMES if type(vars(owner).get(name)) is int]
    return [(_count(owner), rank) for rank in carried]


def _places_within(owner: Any, depth: int) -> list[RankPlace]:
    places = _places_of(owner)
    for value in list(vars(owner).values()):
        if depth and hasattr(value, "__dict__") and _carries_rank(value, depth - 1):
            places += _places_within(value, depth - 1)
    return places


def copied_samplers(loader: "DataLoader[Any]", ranks: RankPair | None) -> dict[str, Any]:
    """Return copies of the samplers of `loader`, with the ranks that they carry replaced."""
    copies: dict[int, Any] = {}

    def copied(sampler: Any) -> Any:
        if id(sampler) in copies:
            return copies[id(sampler)]
        clone = copies[id(sampler)] = shallow_copy(sampler)
        for name in SAMPLER_NAMES:
            below = vars(clone).get(name)
            if below is not None and hasattr(below, "__dict__"):
                vars(clone)[name] = copied(below)
        for name in RANK_NAMES:
            carried = vars(clone).get(name)
            if type(carried) is int and ranks is not None:
                vars(clone)[name] = ranks.of(clone, carried)
        return clone

    samplers = {name: vars(loader).get(name) for name in ("batch_sampler", "sampler")}
    return {
        name: copied(sampler) if hasattr(sampler, "__dict__") else sampler
        for name, sampler in samplers.items()
    }


def worker_init_as(function: Any, ranks: RankPair) -> Any:
    """Return a `worker_init_fn` with the ranks that it carries replaced.

    It may carry them as keywords (those of transformers and Lightning do), in variables around it,
    or in variables of its module.
    """
    if isinstance(function, functools.partial):
        keywords = _with_rank_replaced(function.keywords, ranks)
        return functools.partial(worker_init_as(function.func, ranks), *function.args, **keywords)
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__
    around = inspect.getclosurevars(function)
    known, held = (
        _with_rank_replaced(around.globals, ranks),
        _with_rank_replaced(around.nonlocals, ranks),
    )
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


def _with_rank_replaced(names: Mapping[str, Any], ranks: RankPair) -> dict[str, Any]:
    """Return `names` with our rank replaced wherever a name of a rank holds it."""
    return {
        name: ranks.other
        if name in (*RANK_NAMES, "global_rank") and type(value) is int and value == ranks.own
        else value
        for name, value in names.items()
    }


def stream_as(owner: Any, ranks: RankPair, depth: int = DEEPEST) -> Any:
    """Return a shallow copy of an iterable data set with the ranks in it and its objects replaced.

    Raises NotReplayable if it has a generator of its own: the copy would draw from the same one, or
    from one in another state. Also if it has an object that processes share: a barrier that waits
    for all readers must not meet one more.
    """
    for name, value in vars(owner).items():
        if _is_shared(value):
            raise NotReplayable(
                f"the iterable data set {type(owner).__name__} shares {name} with other processes"
            )
        if object_generators.is_generator(value):
            raise NotReplayable(f"the iterable data set {type(owner).__name__} has a generator")
    return _as_rank(owner, ranks, depth, stream_as)


def rows_as(owner: Any, ranks: RankPair, depth: int = DEEPEST) -> Any:
    """Return a shallow copy of a map-style data set with the ranks in it and its objects replaced;
    the data set itself if it carries none.
    """
    return _as_rank(owner, ranks, depth, rows_as) if _carries_rank(owner, depth) else owner


def _as_rank(
    owner: Any, ranks: RankPair, depth: int, within: Callable[[Any, RankPair, int], Any]
) -> Any:
    """Return a shallow copy with the ranks in it replaced, and objects in it by what is `within`
    them.
    """
    clone = shallow_copy(owner)
    for name, value in vars(owner).items():
        if name in RANK_NAMES and type(value) is int:
            object.__setattr__(clone, name, ranks.of(owner, value))
        elif depth and hasattr(value, "__dict__") and _carries_rank(value, depth - 1):
            object.__setattr__(clone, name, within(value, ranks, depth - 1))
    return clone


def shares_with_processes(owner: Any) -> bool:
    """True if an attribute of `owner` is shared by processes."""
    return any(map(_is_shared, list(getattr(owner, "__dict__", {}).values())))


def _is_shared(value: Any) -> bool:
    """True for a lock, barrier, queue or memory of several processes.

    `multiprocessing` makes them, and libraries for streaming (`SharedBarrier`, `FileLock`).
    """
    kind = type(value)
    made = kind.__module__.partition(".")[0] in ("multiprocessing", "_multiprocessing", "filelock")
    return made or kind.__name__.startswith("Shared") or "shm" in getattr(value, "__dict__", ())


def _carries_rank(owner: Any, depth: int) -> bool:
    if isinstance(owner, type) or not hasattr(owner, "__dict__"):
        return False
    attributes = vars(owner)
    return any(type(attributes.get(name)) is int for name in RANK_NAMES) or bool(
        depth and any(_carries_rank(value, depth - 1) for value in list(attributes.values()))
    )
