"""Do the copies of a lost rank's worker processes draw what its own would have drawn?

Their seeds follow from where the rank made its iterator. But a `worker_init_fn` may seed them anew,
and a data set may make a generator there, by anything: `args.rank`, a seed that differs by rank.
Where numbers are drawn from the first item on, a proof's gradient shows that. Where it begins
later (only large pictures are cropped), it does not. So ranks compare in each proof where the
generators of their worker processes stand after an item that was read, with where they stand in the
copy that another rank has of them. As long as nothing is drawn, it does not matter if they differ.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import BuiltinFunctionType
from typing import Any

from torch.utils.data import DataLoader

from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_workers import GeneratorTrace, WorkerItem
from recoverrun.worker.data.source import Source
from recoverrun.worker.data.weak_source import WeakSource
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
"""Of a loader: the type of its data set and the code that begins its worker processes."""

Tell = Callable[[dict[str, Any]], Mapping[int, dict[str, Any]]]
"""What this rank says; what every rank that holds the same parameters says, by rank."""


class SeedCheck:
    """What a proof has shown of the loaders that have worker processes."""

    def __init__(self) -> None:
        self._judged = False
        self._otherwise: set[Key] = set()
        self._alike: dict[Key, bool] = {}  # and whether the data set had made a generator

    def believe(self, loader: "DataLoader[Any]", read: WorkerItem) -> None:
        """Raises NotReplayable if something was drawn for `read`, as another rank, that may not be
        what that rank would have drawn.

        Until ranks have compared, all is believed: where a loss kept them from it, the promise says
        that it is not proved.
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
        self, sources: Iterable[Source], partner: int, looked: Mapping[str, Any], tell: Tell
    ) -> str:
        """After `partner`'s first microbatch was executed, on all ranks at a time.

        `looked` is what `observe` has found there. Returns why what was drawn for it does not show
        that it will be so later, or "".
        """
        iterators = _with_workers(sources)
        seen = {number: GeneratorTrace(*packed) for number, *packed in looked["seen"]}
        heard = tell({"traces": looked["mine"]})
        theirs = {
            n: GeneratorTrace(*packed) for n, *packed in heard.get(partner, {}).get("traces", ())
        }
        found = [number for number, one in seen.items() if theirs.get(number) != one]
        said = tell({"otherwise": found})
        otherwise = {number for one in said.values() for number in one["otherwise"]}
        for number, one in iterators.items():
            key = _key(one.loader)
            if number in otherwise:
                self._otherwise.add(key)
            elif number in seen:
                self._alike[key] = self._alike.get(key, False) or seen[number].made
        self._judged = True
        names = [
            type(iterators[number].loader.dataset).__name__
            for number in sorted(otherwise & seen.keys())
            if seen[number].drew
        ]
        return OTHERWISE.format(names[0]) if names else ""


def observe(sources: Iterable[Source], partner: int) -> dict[str, Any]:
    """Where the generators of worker processes stood: of the copies that read as `partner`, and of
    others that are begun like our own. As plain values.
    """
    iterators = _with_workers(sources)
    seen = {
        number: one.traces[partner]
        for number, one in iterators.items()
        if partner in one.traces and (_has_init_fn(one) or one.traces[partner].made)
    }
    mine = {number: _retraced(iterators[number], one.index) for number, one in seen.items()}
    return {
        "seen": [[number, *one.pack()] for number, one in seen.items()],
        "mine": [[number, *one.pack()] for number, one in mine.items() if one is not None],
    }


def has_workers(sources: Iterable[Source]) -> bool:
    return bool(_with_workers(sources))


def _with_workers(sources: Iterable[Source]) -> dict[int, LoaderIterator]:
    """Iterators of loaders that have worker processes, by number."""
    held = [source.held for source in sources if isinstance(source, WeakSource)]
    return {
        one.number: one
        for one in held
        if isinstance(one, LoaderIterator) and one.loader.num_workers
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


def _code(function: Any) -> Any:
    """Functions that are made anew for each loader have the same code."""
    if isinstance(function, partial):
        return _code(function.func)
    if isinstance(function, BuiltinFunctionType):
        return function
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))
