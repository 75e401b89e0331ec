"""A check that copies of a lost rank's worker processes draw the numbers that its own would draw.

Their seeds follow from the state in which the rank made its iterator. But a `worker_init_fn` may
seed them anew, and a data set may make a generator there, from anything: `args.rank`, or a seed
that differs by rank. If numbers are drawn from the first item on, the gradient of a proof shows
that; if drawing begins later (only large pictures are cropped), it does not.

So in each proof ranks compare the generators of their worker processes after an item with the
generators in another rank's copy of these processes. As long as nothing is drawn, a difference does
not matter.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import BuiltinFunctionType
from typing import Any

from torch.utils.data import DataLoader

from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.data.worker_item import GeneratorTrace, WorkerItem
from recoverrun.worker.errors import NotReplayable

OTHERWISE = (
    "{} draws random numbers in worker processes that the script seeds by something which each "
    "rank has for itself: ours draw other numbers than those of a lost rank"
)

UNCOMPARED = (
    "{} draws random numbers in worker processes that are seeded by the script's own code, which "
    "could not be compared among ranks in the first step"
)

Key = tuple[type[Any], Any]
"""A kind of loader: the type of its data set, and the code that begins its worker processes."""

Tell = Callable[[dict[str, Any]], Mapping[int, dict[str, Any]]]
"""Sends what this rank says; returns what every rank with the same parameters says, by rank."""


class SeedCheck:
    """The results of proofs about loaders that have worker processes."""

    def __init__(self) -> None:
        self._judged = False
        self._otherwise: set[Key] = set()
        self._alike: dict[Key, bool] = {}  # and whether the data set had made a generator

    def believe(self, loader: "DataLoader[Any]", read: WorkerItem) -> None:
        """Raises NotReplayable if numbers were drawn for `read` that may not be the other rank's.

        Until ranks have compared, everything is accepted: if a loss kept them from comparing, the
        guarantee says that it is not proved.
        """
        if not read.drew or not self._judged:
            return
        key, data = _key(loader), type(loader.dataset).__name__
        if key in self._otherwise:
            raise NotReplayable(OTHERWISE.format(data))
        if loader.worker_init_fn is None and not read.made:
            return
        if key not in self._alike or self._alike[key] < read.made:
            raise NotReplayable(UNCOMPARED.format(data))

    def compare(
        self, sources: Iterable[Source], partner: int, observed: Mapping[str, Any], tell: Tell
    ) -> str:
        """Compare generators with other ranks, after `partner`'s first microbatch was executed.

        All ranks call this at the same time. `observed` is what `observe` returned. Returns why
        the proof does not show that later numbers will be equal, or "".
        """
        iterators = _with_workers(sources)
        seen = {number: GeneratorTrace(*packed) for number, *packed in observed["seen"]}
        heard = tell({"traces": observed["mine"]})
        theirs = {
            n: GeneratorTrace(*packed) for n, *packed in heard.get(partner, {}).get("traces", ())
        }
        compared = {n for n, one in seen.items() if n not in theirs or _like(one, theirs[n])}
        differing = [number for number in compared if theirs.get(number) != seen[number]]
        said = tell({"otherwise": differing})
        otherwise = {number for answer in said.values() for number in answer["otherwise"]}
        for number, iterator in iterators.items():
            key = _key(iterator.loader)
            if number in otherwise:
                self._otherwise.add(key)
            elif number in compared:
                self._alike[key] = self._alike.get(key, False) or seen[number].made
        self._judged = True
        names = [
            type(iterators[number].loader.dataset).__name__
            for number in sorted(otherwise & seen.keys())
            if seen[number].drew
        ]
        return OTHERWISE.format(names[0]) if names else ""


def forget(sources: Iterable[Source], partner: int) -> None:
    """Forget `partner`'s copies but for what they read from now on: this rank may have made up for
    it before, and its process may be one that has come back since.
    """
    for iterator in _with_workers(sources).values():
        iterator.traces.pop(partner, None)


def observe(sources: Iterable[Source], partner: int) -> dict[str, Any]:
    """Return the generators of worker processes as plain values: "seen" and "mine".

    "seen" are those of the copies that read as `partner`; "mine" are those of processes that were
    begun like this rank's own.
    """
    iterators = _with_workers(sources)
    seen = {
        number: iterator.traces[partner]
        for number, iterator in iterators.items()
        if partner in iterator.traces and (_has_init_fn(iterator) or iterator.traces[partner].made)
    }
    mine = {number: _retraced(iterators[number], trace.index) for number, trace in seen.items()}
    return {
        "seen": [[number, *trace.pack()] for number, trace in seen.items()],
        "mine": [[number, *trace.pack()] for number, trace in mine.items() if trace is not None],
    }


def has_workers(sources: Iterable[Source]) -> bool:
    """True if an iterator among `sources` has worker processes."""
    return bool(_with_workers(sources))


def _with_workers(sources: Iterable[Source]) -> dict[int, LoaderIterator]:
    """Return the iterators of loaders that have worker processes, by number."""
    held = [source.held for source in sources if isinstance(source, WeakSource)]
    return {
        iterator.number: iterator
        for iterator in held
        if isinstance(iterator, LoaderIterator) and iterator.loader.num_workers
    }


def _has_init_fn(iterator: LoaderIterator) -> bool:
    return iterator.loader.worker_init_fn is not None


def _retraced(iterator: LoaderIterator, index: int) -> GeneratorTrace | None:
    try:
        return iterator.retrace(index)
    except Exception:  # protects a healthy run from what its data set says to one more reader
        return None


def _key(loader: "DataLoader[Any]") -> Key:
    return type(loader.dataset), _code(loader.worker_init_fn)


def _like(one: GeneratorTrace, other: GeneratorTrace) -> bool:
    """True if both processes have begun alike. Whether they may begin in the midst of the data goes
    by what each rank has seen drawn, and a rank that came back has seen less.
    """
    return one.by_rows == other.by_rows


def _code(function: Any) -> Any:
    """Return the code of `function`: functions that are made anew for each loader share it."""
    if isinstance(function, partial):
        return _code(function.func)
    if isinstance(function, BuiltinFunctionType):
        return function
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))
