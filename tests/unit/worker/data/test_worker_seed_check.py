"""Worker processes of another rank that the script seeds by itself: believed once compared."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.data.worker_seed_check import SeedCheck, has_workers, observe
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams
from tests.unit.loaders import ORIGINAL_ITER, OTHER, OWN, Play

ROWS, LATE = 24, 12
OTHERWISE = "Rows draws random numbers in worker processes that the script seeds by something"
UNCOMPARED = "Rows draws random numbers in worker processes .* could not be compared"

Begin = Callable[[int], None] | None


pytestmark = pytest.mark.usefixtures("streams_put_back")


class Settings:
    """Parsed arguments of a script: nobody knows that its rank is in here."""

    def __init__(self, rank: int) -> None:
        self.process = rank


class Rows(Dataset[Any]):
    """With noise from row `late` on, of a generator made in the worker if it is said how."""

    def __init__(self, late: int, make: Callable[[], Any] | None = None) -> None:
        self.late, self.make = late, make
        self.chance: Any = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> float:
        if self.make is not None and self.chance is None:
            self.chance = self.make()
        if index < self.late:
            return float(index)
        if self.chance is not None:
            return index + float(self.chance.random())
        return index + torch.rand(1).item() + random.random()


class LateRows(Rows):
    """Its generator is made when it is needed."""

    def __getitem__(self, index: int) -> float:
        return float(index) if index < self.late else super().__getitem__(index)


class Flow(IterableDataset[Any]):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[float]:
        worker = get_worker_info()
        assert worker is not None
        yield from map(self.rows.__getitem__, range(worker.id, ROWS, worker.num_workers))


class Rank:
    """A process of `rank`, which has begun to read. Of ours, `theirs` is known."""

    def __init__(self, rank: int, data: Any, begin: Begin, theirs: "Rank | None" = None) -> None:
        torch.manual_seed(70 + rank)
        random.seed(rank)
        self.seeding = SeedCheck()
        play = Play(own_rank=rank, seeding=self.seeding)
        if theirs is not None:
            play.created[0, OTHER] = theirs.origin
        self.loader: DataLoader[Any] = DataLoader(data, 2, num_workers=2, worker_init_fn=begin)
        point = LoaderState.of(self.loader)
        self.origin = Origin.of(self.loader, point.streams, point.generator_states)
        self.iterator = LoaderIterator(self.loader, ORIGINAL_ITER, play, 0)
        self.items = [torch.as_tensor(item).tolist() for item in self.iterator]
        self.sources = [WeakSource(self.iterator)]

    def serve(self, index: int) -> Any:
        return self.iterator.serve(OTHER, index).tolist()

    def compare(self, theirs: "Rank", said: tuple[int, ...] = ()) -> str:
        """As the proof does; `said` are numbers that a third rank found otherwise."""
        words: list[dict[str, Any]] = []

        def tell(mine: dict[str, Any]) -> dict[int, dict[str, Any]]:
            words.append(mine)
            if "traces" in mine:
                told = [[0, *theirs.iterator.retrace(0).pack()]]
                return {OWN: mine, OTHER: {"traces": told}}
            return {OWN: mine, OTHER: {"otherwise": list(said)}}

        self.serve(0)
        looked = observe(self.sources, OTHER)
        self.iterator.forget(OTHER)
        found = self.seeding.compare(self.sources, OTHER, looked, tell)
        assert [list(one) for one in words] == [["traces"], ["otherwise"]]
        return found


def ranks(data: Callable[[int], Any], begin: Callable[[int], Begin]) -> tuple[Rank, Rank]:
    """Ours and the other."""
    theirs = Rank(OTHER, data(OTHER), begin(OTHER))
    return Rank(OWN, data(OWN), begin(OWN), theirs), theirs


def unseeded(rank: int) -> Begin:
    return None


def documented(rank: int) -> Begin:
    def begin(worker: int) -> None:
        random.seed(torch.initial_seed() % 2**32)

    return begin


def by_word(rank: int) -> Begin:
    """A seed that a copy knows to replace."""
    return partial(_seeded, rank=rank)


def _seeded(worker: int, rank: int) -> None:
    torch.manual_seed(1000 * rank + worker)
    random.seed(1000 * rank + worker)


def by_settings(rank: int) -> Begin:
    settings = Settings(rank)
    return lambda worker: _seeded(worker, settings.process)


def by_seed(rank: int) -> Begin:
    seed = 3 + rank
    return lambda worker: _seeded(worker, seed)


def by_chance(rank: int) -> Begin:
    return lambda worker: random.seed()


def late(rank: int) -> Rows:
    return Rows(LATE)


def late_by_worker(rank: int) -> Rows:
    return Rows(LATE, lambda: numpy.random.default_rng(torch.initial_seed()))


def late_by_rank(rank: int) -> Rows:
    return Rows(LATE, lambda: random.Random(rank))


@pytest.mark.parametrize("flows", [False, True])
@pytest.mark.parametrize(
    ("data", "begin"),
    [(late, unseeded), (late, documented), (late, by_word), (late_by_worker, documented)],
)
def test_what_follows_from_the_seeds_of_workers_is_believed(
    data: Callable[[int], Rows], begin: Callable[[int], Begin], flows: bool
) -> None:
    mine, theirs = ranks(lambda rank: Flow(data(rank)) if flows else data(rank), begin)

    assert not mine.compare(theirs)
    assert [mine.serve(index) for index in range(ROWS // 2)] == theirs.items


@pytest.mark.parametrize("begin", [by_settings, by_seed, by_chance])
def test_seeds_that_only_a_rank_has_are_believed_until_they_matter(
    begin: Callable[[int], Begin],
) -> None:
    mine, theirs = ranks(late, begin)

    assert not mine.compare(theirs), "nothing was drawn"
    assert [mine.serve(index) for index in range(LATE // 2)] == theirs.items[: LATE // 2]
    with pytest.raises(NotReplayable, match=OTHERWISE):
        mine.serve(LATE // 2)


def test_so_it_is_with_streams() -> None:
    mine, theirs = ranks(lambda rank: Flow(Rows(LATE)), by_settings)

    assert not mine.compare(theirs)
    assert mine.serve(2) == theirs.items[2]
    with pytest.raises(NotReplayable, match="Flow draws random numbers in worker"):
        mine.serve(ROWS // 2 - 1)


def test_a_generator_that_only_a_rank_could_seed_is_told_at_once() -> None:
    mine, theirs = ranks(late_by_rank, unseeded)

    assert mine.serve(0) == theirs.items[0], "nothing was drawn from it"
    assert OTHERWISE in mine.compare(theirs)


def test_what_another_rank_found_holds_for_all() -> None:
    mine, theirs = ranks(late, documented)

    assert not mine.compare(theirs, said=(0,))
    with pytest.raises(NotReplayable, match=OTHERWISE):
        mine.serve(LATE // 2)


def test_a_generator_that_was_not_there_to_be_compared_is_not_believed() -> None:
    mine, theirs = ranks(lambda rank: LateRows(LATE, lambda: random.Random(3)), unseeded)

    assert not mine.compare(theirs)
    with pytest.raises(NotReplayable, match=f"Late{UNCOMPARED}"):
        mine.serve(LATE // 2)


@pytest.mark.parametrize("begin", [documented, unseeded])
def test_a_loader_that_was_not_compared_is_believed_if_torch_alone_seeds_its_workers(
    begin: Callable[[int], Begin],
) -> None:
    mine, theirs = ranks(late, begin)

    nothing = observe([], OTHER)
    mine.seeding.compare([], OTHER, nothing, lambda said: {OTHER: {"traces": [], "otherwise": []}})

    if begin is unseeded:
        assert mine.serve(LATE // 2) == theirs.items[LATE // 2]
    else:
        with pytest.raises(NotReplayable, match=UNCOMPARED):
            mine.serve(LATE // 2)


def test_the_same_code_of_a_later_loader_was_compared() -> None:
    mine, theirs = ranks(late, documented)
    mine.compare(theirs)

    later = Rank(OWN, late(OWN), documented(OWN), theirs)
    later.iterator.runtime.seeding = mine.seeding  # type: ignore[attr-defined]

    assert later.serve(LATE // 2) == theirs.items[LATE // 2]


def test_to_look_at_our_own_workers_once_more_moves_nothing() -> None:
    mine, _ = ranks(late, documented)
    before = read_streams()

    traces = [mine.iterator.retrace(0), mine.iterator.retrace(LATE // 2)]

    assert [one.drew for one in traces] == [False, True]
    assert read_streams() == before
    assert not mine.iterator.iterators and not mine.iterator.traces
    assert mine.iterator.runtime.spoken_for is None  # type: ignore[attr-defined]


def test_a_data_set_that_refuses_one_more_reader_does_not_end_the_run() -> None:
    mine, theirs = ranks(late, documented)
    mine.loader.dataset.__dict__["make"] = lambda: 1 / 0
    mine.iterator.traces[OTHER] = theirs.iterator.retrace(0)
    said: list[Any] = []

    def tell(word: dict[str, Any]) -> dict[int, dict[str, Any]]:
        said.append(word)
        return {OTHER: {"traces": [[0, *theirs.iterator.retrace(0).pack()]], "otherwise": []}}

    looked = observe(mine.sources, OTHER)
    assert not mine.seeding.compare(mine.sources, OTHER, looked, tell)
    assert said == [{"traces": []}, {"otherwise": []}], "the other rank finds that it is missing"


def test_a_rank_that_could_not_look_is_not_believed() -> None:
    mine, _ = ranks(late, documented)
    mine.serve(0)
    looked = observe(mine.sources, OTHER)
    mine.iterator.forget(OTHER)
    silent: dict[str, Any] = {"traces": [], "otherwise": []}

    assert not mine.seeding.compare(
        mine.sources, OTHER, looked, lambda said: {OWN: said, OTHER: silent}
    )
    with pytest.raises(NotReplayable, match=OTHERWISE):
        mine.serve(LATE // 2)


def test_who_has_no_workers_takes_no_part() -> None:
    loader: DataLoader[Any] = DataLoader(Rows(ROWS))
    alone = LoaderIterator(loader, ORIGINAL_ITER, Play(), 0)
    mine, _ = ranks(late, unseeded)

    assert not has_workers([WeakSource(alone)])
    assert has_workers([*mine.sources, WeakSource(alone)])
