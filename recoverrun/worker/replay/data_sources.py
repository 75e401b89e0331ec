"""The script's data iterators, and who is drawing from them now."""

import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.analysis.moving_shares import OWN, MovingShares
from recoverrun.worker.context.fingerprints import marks
from recoverrun.worker.context.slot_context import ATTRIBUTE_TENSOR_BYTES
from recoverrun.worker.data.cycle_source import CycleSource
from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.generator_wrapper import Make
from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_clone import clone_for, keeps_workers, with_workers
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_workers import CheckedItems, watched
from recoverrun.worker.data.object_copy import attributes_of
from recoverrun.worker.data.own_data_sets import own_data_sets, put_in_place
from recoverrun.worker.data.rank_substitution import RankPair
from recoverrun.worker.data.source import Draw, Source
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.data.worker_item import WorkerItem
from recoverrun.worker.data.worker_seed_check import SeedCheck
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.data_set_shares import DataSetShares
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.loader_parts import MOVING, kinds_in, moving_part, require_met
from recoverrun.worker.replay.proved_generators import ProvedGenerators
from recoverrun.worker.replay.rank_constants import CALLED
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from rendezvous.protocol.layout import Layout


class DataSources:
    """Wraps every loader's iterator; answers it as `data.DataRuntime`."""

    def __init__(self, runtime: ScriptRuntime, executor: Executor) -> None:
        self._runtime = runtime
        self._executor = executor
        self.seeding = SeedCheck()
        self._fed = 0
        self._reading = 0  # iterable data sets that are read now
        self.shares = DataSetShares()
        self.proved = ProvedGenerators(runtime)

    def iterate(
        self, loader: "DataLoader[Any]", make: Callable[[Any], Iterator[Any]]
    ) -> Iterator[Any]:
        """The iterator of a loader, as the acting rank sees it; `make` is torch's own way."""
        runtime = self._runtime
        if not runtime.active or runtime.gate.lone:
            return make(loader)
        acting = self.acting_rank
        if acting is not None:
            if self.fresh:
                return make(loader)
            own_origin = Origin.of(loader, None, ())
            origin = self._created_now(own_origin, acting)
            origin.require_rank_places(own_origin, runtime.own_rank, acting)
            carried = origin.places_for(own_origin)
            ranks = RankPair(runtime.own_rank, acting, runtime.layout, carried)
            alone = isinstance(loader.dataset, IterableDataset) and not loader.num_workers
            stream = IterableSnapshot(loader.dataset) if alone else None
            clone = clone_for(loader, ranks, stream, self.seen)
            origin.apply_rows(clone)
            if not keeps_workers(loader):
                clone = with_workers(clone, loader)
            with self.speaking_as(acting):
                if not clone.num_workers:
                    return make(clone)
                return CheckedItems(make(watched(clone)), loader, self.believe)
        number, winds = runtime.opened, runtime.winds
        late = None if winds is None else winds.opens(number)
        source = LoaderIterator(loader=loader, make=make, runtime=self, number=number, late=late)
        runtime.opened += 1
        runtime.adopt(WeakSource(source))
        return source

    def feed(self, generator: Any, name: str, make: Make | None) -> GeneratorSource:
        """A generator of the script's own, which may hand on what a loader gives."""
        self._fed += 1
        again = None if self._reading else make  # a copy of that data set makes its own
        feed = GeneratorSource(generator, name, self, self._fed, again)
        self._runtime.adopt(WeakSource(feed))
        return feed

    def cycle(self, original: Callable[..., Iterator[Any]], iterable: Any) -> Iterator[Any]:
        """The iterator for `itertools.cycle(iterable)`; only the script's code gets a stand-in."""
        runtime = self._runtime
        caller = sys._getframe(2).f_globals.get("__name__")
        if runtime.quiet or caller not in runtime.own_modules:
            return original(iterable)
        self._fed += 1
        made = CycleSource(iter(iterable), self, self._fed)
        runtime.adopt(WeakSource(made))
        return made

    asking, reads_ahead = 0, False

    @property
    def acting_rank(self) -> int | None:
        return self._runtime.mode.acting_here

    @property
    def own_rank(self) -> int:
        return self._runtime.own_rank

    @property
    def layout(self) -> Layout | None:
        return self._runtime.layout

    @property
    def fresh(self) -> bool:
        return self._executor.fresh and self.acting_rank is not None

    @property
    def looking_back(self) -> bool:
        return self._executor.items.looking_back

    @property
    def seen(self) -> Container[int]:
        observer = self._runtime.observer
        return frozenset() if observer is None else observer.seen()

    @contextmanager
    def speaking_as(self, rank: int) -> Iterator[None]:
        before = os.environ.get("RANK")
        os.environ["RANK"] = str(rank)
        try:
            with self._runtime.mode.named(rank):
                yield
        finally:
            if before is None:
                del os.environ["RANK"]
            else:
                os.environ["RANK"] = before

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    def created_at(self, number: int, rank: int) -> Origin | None:
        captures, lost = self._executor.captures, self._executor.lost.get(rank)
        own_origin = captures.loaders().get(number)
        if lost is None:
            return None
        loader, runtime = _loader_of(number, self._runtime.sources), self._runtime
        if loader is not None:
            told = None if lost.made is None or number in lost.made else self.shares.knows
            _require_known(loader, runtime, self._executor, self.proved.names, told)
        origin = lost.origin(number, own_origin, captures.points)
        if origin is None and own_origin is None:
            raise NotReplayable(f"data iterator {number} of rank {rank} is not known any more")
        return origin

    def _created_now(self, own: Origin, rank: int) -> Origin:
        """The origin of an iterator that `rank` creates in the microbatch that is executed now."""
        lost = self._executor.lost.get(rank)
        return own if lost is None else lost.pairs.derive(own, None, acting=True)

    def drawn(self, source: Source, index: int, item: Any) -> None:
        if not self._runtime.quiet:
            self._runtime.drawn(source, index, item)

    def believe(self, loader: "DataLoader[Any]", read: WorkerItem) -> None:
        self.seeding.believe(loader, read)

    @property
    def drawn_so_far(self) -> int:
        return self._runtime.draws.count

    def draws_since(self, mark: int) -> list[Draw] | None:
        return self._runtime.draws.since(mark)

    def fold(self, mark: int, draw: Draw | None) -> None:
        self._runtime.draws.fold(mark, draw)

    def theirs(self, data: Any, begun: IterableSnapshot | None) -> dict[str, Any]:
        rank, ours = self.acting_rank, self._executor.executed.data_sets
        found = {} if begun is None else put_in_place(data, ours, begun)
        if rank is None or rank == self.own_rank:
            return found
        then = attributes_of(data) if begun is None else begun.attributes
        kinds = kinds_in(data, self._runtime.own_modules)

        def owns(name: str) -> bool:
            return name not in found and bool(
                _labels(self._runtime, self._executor).held(kinds, name) & OWN
            )

        return found | self.shares.of(rank, data, then or {}, owns)

    def roots(self) -> dict[str, Any]:
        """Sources that the script need not hold by a variable, and in which ranks may differ."""
        return {**own_data_sets(self._runtime.sources), **_makers(self._runtime.sources)}

    def bulk(self) -> dict[str, str]:
        """Marks of large data that iterable data sets hold."""
        return {
            f"{type(data).__name__}.{name}": mark
            for data in own_data_sets(self._runtime.sources).values()
            for name, mark in marks(vars(data), ATTRIBUTE_TENSOR_BYTES).items()
        }

    def trusts(self, name: str) -> bool:
        return name in self.proved.names

    def made_as(self, number: int, name: str, own: Make) -> Make | None:
        executor, bare = self._executor, name.rpartition(".")[2]
        if number in self.proved.numbers:
            return own
        differs = executor.constants.differ_in(_root(name))
        if differs or executor.influence.gives(bare, executor.executed.apart):
            return executor.executed.made_like(own)
        return own

    def spoil(self, reason: str) -> None:
        self._runtime.spoil(reason)


def _require_known(
    loader: "DataLoader[Any]",
    runtime: ScriptRuntime,
    executor: Executor,
    met: Container[str],
    told: Callable[[Any], bool] | None,
) -> None:
    """Raises NotReplayable if the loader may go over what is a rank's own and that no proof has
    `met`, or nobody `told` of as it is. Without that the rank has made it, and is judged by what it
    has noted.
    """
    apart, influence = executor.executed.apart, executor.influence
    require_met(loader, met, lambda name: influence.gives(name, apart))
    if told is None:
        return
    if part := moving_part(loader, runtime.own_modules, _labels(runtime, executor), told):
        raise NotReplayable(MOVING.format(part=part))


def _labels(runtime: ScriptRuntime, executor: Executor) -> MovingShares:
    loops = [one.loop for one in runtime.stack]
    return executor.influence.moving(loops, executor.executed.apart)


def _loader_of(number: int, sources: Iterable[Source]) -> "DataLoader[Any] | None":
    """The loader of this iterator."""
    for source in sources:
        held = source.held if isinstance(source, WeakSource) else None
        if isinstance(held, LoaderIterator) and held.number == number:
            return held.loader
    return None


def _root(function: str) -> str:
    """The beginning of the name that all ranks have for a call of this generator function."""
    return f"{CALLED}{function.rpartition('.')[2]}"


def _makers(sources: Iterable[Source]) -> dict[str, Make]:
    """The calls that make generators of the script again, by names that all ranks have."""
    held = [source.held for source in sources if isinstance(source, WeakSource)]
    found: dict[str, Make] = {}
    for one in held:
        if isinstance(one, GeneratorSource) and one.again is not None:
            name = _root(one.name)
            found[f"{name}_{sum(known.startswith(name) for known in found)}"] = one.again.make
    return found
