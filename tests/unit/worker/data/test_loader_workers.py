"""Items of worker processes for another rank: bit for bit its own, and nothing happens in ours."""

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_clone import keeps_workers, with_workers, without_workers
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams
from tests.unit.loaders import ORIGINAL_ITER, OTHER, OWN, WORLD, Play

ROWS, WORKERS, BATCH = 60, 2, 2
Row = Callable[[int], Any]


pytestmark = pytest.mark.usefixtures("streams_put_back")


class Rows(Dataset[Any]):
    """Row `index` is what `row` makes of it."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.chance: Any = None
        self.begun = 0  # rows that this object has given

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        self.begun += 1
        return torch.tensor([float(index), float(self.row(index))], dtype=torch.float64)


def plain(index: int) -> float:
    return index / 7


def noisy(index: int) -> float:
    """All three streams."""
    return index + torch.rand(1).item() + random.random() + float(numpy.random.rand())


def noisy_in_torch(index: int) -> float:
    return index + torch.rand(1).item()


def noisy_late(index: int) -> float:
    return noisy(index) if index >= ROWS // 2 else plain(index)


def told_of_worker(index: int) -> float:
    worker = get_worker_info()
    assert worker is not None
    return index * 10 + worker.id


def lazily(index: int) -> float:
    """A generator that a worker process makes as it is first asked."""
    data = _here()
    data.chance = data.chance or numpy.random.default_rng(torch.initial_seed())
    return float(data.chance.random())


def given(index: int) -> float:
    return float(_here().chance.random())


def give_generator(worker: int) -> None:
    _here().chance = numpy.random.default_rng(torch.initial_seed())


def _here() -> Any:
    worker = get_worker_info()
    assert worker is not None
    return worker.dataset


class Side:
    """A process of `rank`: a loader, with two passes begun over it."""

    def __init__(self, rank: int, play: Play | None, row: Row, **options: Any) -> None:
        torch.manual_seed(70 + rank)
        random.seed(rank)
        self.data = Rows(row)
        sampler = DistributedSampler(self.data, WORLD, rank)
        options = {"num_workers": WORKERS, **options}
        self.loader: DataLoader[Any] = DataLoader(self.data, BATCH, sampler=sampler, **options)
        self.origins: list[Origin] = []
        self.iterators: list[Any] = []
        self.items: list[list[Any]] = []
        for number in range(2):
            sampler.set_epoch(number)
            torch.rand(3)
            point = LoaderState.of(self.loader)
            self.origins.append(Origin.of(self.loader, point.streams, point.generator_states))
            if play is None:
                self.iterators.append(ORIGINAL_ITER(self.loader))
            else:
                self.iterators.append(LoaderIterator(self.loader, ORIGINAL_ITER, play, number))
            self.items.append(list(self.iterators[-1]))


def sides(row: Row, **options: Any) -> tuple[Side, Side]:
    """Ours, told where the other's iterators began, and the other."""
    theirs = Side(OTHER, None, row, **options)
    play = Play(created={(n, OTHER): origin for n, origin in enumerate(theirs.origins)})
    return Side(OWN, play, row, **options), theirs


@pytest.mark.parametrize("first", [0, 3, 8])
@pytest.mark.parametrize("row", [plain, noisy, noisy_late, told_of_worker, lazily])
def test_another_rank_s_rows_are_those_that_its_workers_give(row: Row, first: int) -> None:
    mine, theirs = sides(row)
    before = read_streams()

    for iterator, expected in zip(mine.iterators, theirs.items, strict=True):
        served = [iterator.serve(OTHER, index) for index in range(first, len(expected))]
        assert all(map(torch.equal, served, expected[first:]))
        with pytest.raises(StopIteration):
            iterator.serve(OTHER, len(expected))

    assert read_streams() == before
    assert mine.data.begun == 0 and mine.data.chance is None


def test_a_generator_that_the_script_gives_its_workers_is_theirs() -> None:
    mine, theirs = sides(given, worker_init_fn=give_generator)

    served = [mine.iterators[1].serve(OTHER, index) for index in range(5)]

    assert all(map(torch.equal, served, theirs.items[1]))


def seeded_by_rank(worker: int, rank: int) -> None:
    """As transformers does."""
    torch.manual_seed(torch.initial_seed() % 1000 + WORKERS * rank + worker)


def around(rank: int) -> Callable[[int], None]:
    def begin(worker: int) -> None:
        torch.manual_seed(1000 * rank + worker)

    return begin


def of_module(rank: int) -> Any:
    """A function of a module whose variable `rank` is this."""
    names: dict[str, Any] = {"torch": torch, "rank": rank}
    exec("def begin(worker, far=1000):\n    torch.manual_seed(far * rank + worker)", names)
    return names["begin"]


@pytest.mark.parametrize(
    "make", [lambda rank: partial(seeded_by_rank, rank=rank), around, of_module]
)
def test_what_begins_a_worker_hears_of_that_rank(make: Callable[[int], Any]) -> None:
    theirs = Side(OTHER, None, noisy_in_torch, worker_init_fn=make(OTHER))
    play = Play(created={(0, OTHER): theirs.origins[0]})
    mine = Side(OWN, play, noisy_in_torch, worker_init_fn=make(OWN))

    served = [mine.iterators[0].serve(OTHER, index) for index in range(4)]

    assert all(map(torch.equal, served, theirs.items[0]))
    again = Side(OWN, None, noisy_in_torch, worker_init_fn=mine.loader.worker_init_fn)
    assert all(map(torch.equal, again.items[0], mine.items[0]))


def test_without_draws_nothing_is_read_that_comes_before(tmp_path: Path) -> None:
    def counted(index: int) -> float:
        (tmp_path / f"{index}").touch()
        return index

    mine, theirs = sides(counted)
    for path in tmp_path.iterdir():
        path.unlink()

    mine.iterators[0].serve(OTHER, 8)
    mine.iterators[0].forget(OTHER)

    read = {int(path.name) for path in tmp_path.iterdir()}
    before = {int(index) for item in theirs.items[0][:8] for index in item[:, 0]}
    assert read and not read & before


def test_what_is_asked_for_again_is_as_it_was_and_not_read_again() -> None:
    mine, theirs = sides(noisy)
    iterator = mine.iterators[0]
    first = iterator.serve(OTHER, 4)
    reader = iterator.iterators[OTHER]
    iterator.serve(OTHER, 5)
    first.zero_()

    assert torch.equal(iterator.serve(OTHER, 4), theirs.items[0][4])
    assert iterator.iterators[OTHER] is reader
    iterator.begin_step(iterator.count)
    assert sorted(reader.kept) == [4, 5]
    iterator.begin_step(iterator.count)
    assert not reader.kept


def test_workers_that_live_on_are_not_seeded_anew() -> None:
    mine, theirs = sides(noisy, persistent_workers=True)

    assert torch.equal(mine.iterators[0].serve(OTHER, 1), theirs.items[0][1])
    with pytest.raises(NotReplayable, match="Rows depends on the seeds of worker processes"):
        mine.iterators[1].serve(OTHER, 1)


class Lines(IterableDataset[int]):
    """Lines of which nobody knows the number."""

    def __iter__(self) -> Iterator[int]:
        yield from range(4)


def test_workers_that_live_on_serve_a_further_pass_over_data_without_a_length() -> None:
    loader = DataLoader(Lines(), BATCH, num_workers=1, persistent_workers=True)
    assert not keeps_workers(loader)
    passes = [list(LoaderIterator(loader, ORIGINAL_ITER, Play(), k)) for k in range(2)]

    assert keeps_workers(loader)
    assert [[batch.tolist() for batch in batches] for batches in passes] == [[[0, 1], [2, 3]]] * 2
    loader._iterator._shutdown_workers()  # type: ignore[union-attr]


def test_a_generator_of_the_script_s_own_process_is_not_told() -> None:
    mine, _ = sides(plain)
    mine.data.row, mine.data.chance = given, numpy.random.default_rng(3)

    with pytest.raises(NotReplayable, match="Rows draws from a generator of its own in worker"):
        mine.iterators[0].serve(OTHER, 0)


def test_a_data_set_that_has_not_the_other_rank_s_rows_says_so() -> None:
    def broken(index: int) -> float:
        raise LookupError("no such row")

    mine, _ = sides(plain)
    mine.data.row = broken

    before = set(multiprocessing.active_children())
    with pytest.raises(NotReplayable, match=f"set Rows, read as rank {OTHER}, raised .*no such"):
        mine.iterators[0].serve(OTHER, 0)

    assert set(multiprocessing.active_children()) <= before, "its workers have ended"


@pytest.mark.parametrize("fail", ["waits", "dies"])
def test_workers_that_give_nothing_do_not_end_the_run(
    fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recoverrun.worker.data.loader_clone.WORKER_TIMEOUT_S", 1.0)

    def failing(index: int) -> float:
        if fail == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
        raise AssertionError("no signal comes")

    mine, _ = sides(plain, num_workers=1)
    mine.data.row = failing

    with pytest.raises(NotReplayable, match="gave no batch of Rows for another rank: DataLoader"):
        mine.iterators[0].serve(OTHER, 0)
    mine.iterators[0].forget(OTHER)


def test_a_worker_that_dies_ahead_of_what_is_asked_for_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch would raise its death in the main thread at that moment."""
    monkeypatch.setattr("recoverrun.worker.data.loader_clone.WORKER_TIMEOUT_S", 3600.0)

    def failing(index: int) -> float:
        if _here().begun > BATCH:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(index)

    mine, _ = sides(plain, num_workers=1)
    mine.data.row = failing
    assert mine.iterators[0].serve(OTHER, 0) is not None

    (reader,) = mine.iterators[0].iterators[OTHER].items._workers
    reader.join(120)
    assert reader.exitcode == -signal.SIGKILL

    with pytest.raises(
        NotReplayable, match=r"another rank: DataLoader worker \(pid \d+\) has ended with code -9"
    ):
        mine.iterators[0].serve(OTHER, 1)
    mine.iterators[0].forget(OTHER)


def test_fresh_data_come_from_workers_though_the_data_set_has_a_lock() -> None:
    mine, _ = sides(told_of_worker)
    vars(mine.data)["lock"] = multiprocessing.Lock()
    iterator = mine.iterators[0]
    iterator.runtime.fresh = True

    assert len(next(iterator)) == 2
    assert mine.data.begun == 0


@pytest.mark.parametrize("way", ["spawn", "forkserver"])
def test_workers_for_another_rank_are_forked_whatever_the_script_has(way: str) -> None:
    """A lambda cannot be sent to a process that begins with nothing."""
    loader = DataLoader(
        Rows(lambda index: index / 7), BATCH, num_workers=1, multiprocessing_context=way
    )

    made = with_workers(without_workers(loader, {}), loader)

    assert torch.equal(torch.cat([*made])[:, 0], torch.arange(ROWS, dtype=torch.float64))
    assert loader.multiprocessing_context.get_start_method() == way
