"""Iterable data sets, read again as another rank: in the process itself, or by worker processes."""

import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_iterator import LOOKED_AT_S, LoaderIterator
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams
from tests.unit.loaders import ORIGINAL_ITER, OTHER, OWN, WORLD, Numbers, Play, seed

pytestmark = pytest.mark.usefixtures("streams_put_back")


class Share:
    """The share of a rank in the items, as data set libraries keep it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world_size = rank, WORLD


class Stream(IterableDataset[Any]):
    """Items of one rank in order; with `noise`, random numbers are drawn on the way."""

    def __init__(self, rank: int, noise: bool = False) -> None:
        self.share, self.noise = Share(rank), noise

    def __iter__(self) -> Iterator[float]:
        for index in range(self.share.rank, 12, WORLD):
            yield index + (torch.rand(1).item() if self.noise else 0.0)


def streaming(stream: IterableDataset[Any], play: Play, **options: Any) -> LoaderIterator:
    loader: DataLoader[Any] = DataLoader(stream, batch_size=None, **options)
    return LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)


def test_an_iterable_data_set_is_read_again_as_another_rank() -> None:
    iterator = streaming(Stream(OWN), Play())

    assert [iterator.serve(OTHER, index) for index in (1, 2, 0)] == [5, 8, 2]
    assert [next(iterator) for _ in range(2)] == [0, 3]


def test_an_iterable_data_set_that_draws_as_it_is_read_is_not_replayable() -> None:
    iterator = streaming(Stream(OWN, noise=True), Play())

    iterator.serve(OTHER, 0)
    with pytest.raises(NotReplayable, match="draws random numbers as it is read"):
        iterator.serve(OTHER, 2)


def test_an_iterable_data_set_with_a_generator_of_its_own_is_not_replayable() -> None:
    stream = Stream(OWN)
    vars(stream)["chance"] = random.Random(3)

    with pytest.raises(NotReplayable, match="Stream has a generator"):
        streaming(stream, Play()).serve(OTHER, 0)


def test_a_generator_is_told_how_far_an_item_and_its_iterator_have_moved_the_streams() -> None:
    play = Play()
    play.asking = 1
    before = read_streams()
    iterator = LoaderIterator(
        loader=DataLoader(Numbers(noise=True), 2), make=ORIGINAL_ITER, runtime=play, number=0
    )
    next(iterator)
    first = read_streams()
    assert iterator.moved == (before, first)

    next(iterator)
    assert iterator.moved == (first, read_streams())

    play.asking = 0
    next(iterator)
    assert iterator.moved is None


class Kept(Stream):
    """Whoever copies it gets its very attributes, as with the streams of Hugging Face datasets."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state


def test_a_copy_of_a_stream_leaves_the_stream_what_it_is() -> None:
    stream = Kept(OWN)
    iterator = streaming(stream, Play())

    assert [iterator.serve(OTHER, index) for index in (0, 1)] == [2, 5]
    assert stream.share.rank == OWN
    assert [next(iterator) for _ in range(2)] == [0, 3]


@pytest.mark.parametrize("made", [multiprocessing.Lock, lambda: multiprocessing.Barrier(2)])
def test_a_stream_that_processes_share_is_not_read_by_one_more(made: Callable[[], Any]) -> None:
    stream = Stream(OWN)
    vars(stream)["gate"] = made()

    with pytest.raises(NotReplayable, match="Stream shares gate with other processes"):
        streaming(stream, Play()).serve(OTHER, 0)


class Shuffled(IterableDataset[Any]):
    """Asks for its rank and its worker, and draws from all streams on its way."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def __iter__(self) -> Iterator[float]:
        worker = get_worker_info()
        assert worker is not None
        rank = self.play.own_rank if self.play.spoken_for is None else self.play.spoken_for
        place = rank * worker.num_workers + worker.id
        for index in range(place, 40, WORLD * worker.num_workers):
            yield index + torch.rand(1).item() + random.random() + float(numpy.random.rand())


def _shuffled(play: Play) -> "DataLoader[Any]":
    seed(play.own_rank)
    return DataLoader(Shuffled(play), batch_size=2, num_workers=2)


@pytest.mark.parametrize("first", [0, 3])
def test_a_stream_read_by_workers_is_read_again_by_workers(first: int) -> None:
    their_loader = _shuffled(Play(own_rank=OTHER))
    point = LoaderState.of(their_loader)
    theirs = [batch.tolist() for batch in ORIGINAL_ITER(their_loader)]
    play = Play()
    loader = _shuffled(play)
    play.created[0, OTHER] = Origin.of(their_loader, point.streams, point.generator_states)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    mine = next(iterator)

    before = read_streams()
    served = [iterator.serve(OTHER, index).tolist() for index in range(first, len(theirs))]

    assert served == theirs[first:]
    assert read_streams() == before
    assert mine.tolist() not in theirs
    iterator.forget(OTHER)


def test_a_stream_read_by_workers_of_unknown_seeds_is_not_replayable() -> None:
    iterator = streaming(Stream(OWN), Play(), num_workers=1)

    with pytest.raises(NotReplayable, match="Stream depends on the seeds of worker"):
        iterator.serve(OTHER, 0)


class Endless(IterableDataset[Any]):
    """For every item `wait` is called, also by copies."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait, self.rank = wait, OWN

    def __iter__(self) -> Iterator[int]:
        for index in itertools.count():
            self.wait()
            yield index


def test_what_takes_too_long_to_read_again_is_not_replayable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("recoverrun.worker.data.loader_iterator.time.monotonic", lambda: clock[0])

    def taking(seconds: float) -> LoaderIterator:
        def wait() -> None:
            clock[0] += seconds

        return streaming(Endless(wait), Play())

    quick, slow = taking(0.01), taking(0.02)

    assert quick.serve(OTHER, 5000) == 5000
    begun = clock[0]
    with pytest.raises(NotReplayable, match="5000 items of Endless again would take about 100 s"):
        slow.serve(OTHER, 5000)

    assert clock[0] - begun < 2 * LOOKED_AT_S


def test_an_iterable_data_set_can_give_fresh_data() -> None:
    iterator = streaming(Stream(OWN), Play(fresh=True))

    assert [next(iterator) for _ in range(6)] == [0, 3, 6, 9, 0, 3]


def test_fresh_data_of_a_stream_that_asks_for_its_worker_come_from_workers() -> None:
    play = Play()
    loader = _shuffled(play)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    play.fresh = True

    assert len(next(iterator)) == 2
