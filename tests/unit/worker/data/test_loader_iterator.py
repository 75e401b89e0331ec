"""Another rank's data, bit for bit what a real process of that rank draws, without a trace here."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from recoverrun.worker.data.batch_substitution import pairs_for_rank
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.source import Draw
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams, restore_streams
from tests.unit.loaders import (
    LOADERS,
    ORIGINAL_ITER,
    OTHER,
    OWN,
    WITH_WORKERS,
    WORLD,
    Numbers,
    Play,
    distributed,
    epochs_of,
    seed,
)

pytestmark = pytest.mark.usefixtures("streams_put_back")


@pytest.mark.parametrize("name", [*LOADERS, *WITH_WORKERS])
def test_what_is_served_is_what_that_rank_draws(name: str) -> None:
    make = {**LOADERS, **WITH_WORKERS}[name]
    theirs, _ = epochs_of(make, OTHER, None)
    play = Play()
    mine, loader = epochs_of(make, OWN, play)
    play.created = {(epoch, OTHER): at for epoch, (_, _, at) in enumerate(theirs)}
    before = read_streams(), [_state(one) for one in (loader.generator, loader.sampler)]

    for (iterator, _, _), (_, expected, _) in zip(mine, theirs, strict=True):
        order = [0, 1, 1, 4, 2, len(expected) - 1]  # forward, again, back
        for index in order:
            assert torch.equal(iterator.serve(OTHER, index), expected[index])
        with pytest.raises(StopIteration):
            iterator.serve(OTHER, len(expected))

    assert (read_streams(), [_state(one) for one in (loader.generator, loader.sampler)]) == before


def _state(owner: Any) -> Any:
    held = owner if isinstance(owner, torch.Generator) else getattr(owner, "generator", None)
    return None if held is None else held.get_state().tolist()


@pytest.mark.parametrize("name", LOADERS)
def test_serving_another_rank_leaves_our_own_items_as_they_are(name: str) -> None:
    plain, _ = epochs_of(LOADERS[name], OWN, None)
    theirs, _ = epochs_of(LOADERS[name], OTHER, None)
    play = Play(created={(0, OTHER): theirs[0][2]})
    seed(OWN)
    loader = LOADERS[name](Numbers(), OWN)
    torch.rand(5)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    torch.rand(3)
    own = []
    for index in range(4):
        own.append(next(iterator))
        iterator.serve(OTHER, index)

    assert all(torch.equal(one, other) for one, other in zip(own, plain[0][1], strict=False))
    assert [index for index, _ in play.draws] == [0, 1, 2, 3]


def test_items_that_draw_numbers_are_served_from_the_streams_of_that_moment() -> None:
    """The first item of the other rank, with the noise that it drew."""
    theirs, _ = epochs_of(LOADERS["distributed"], OTHER, None, noise=True)
    play = Play(created={(0, OTHER): theirs[0][2]})
    mine, _ = epochs_of(LOADERS["distributed"], OWN, play, noise=True)
    restore_streams(theirs[0][2].streams)
    torch.empty((), dtype=torch.int64).random_()  # the seed of the loader's workers
    torch.rand(3)

    assert torch.equal(mine[0][0].serve(OTHER, 0), theirs[0][1][0])


def test_passing_over_items_reads_none() -> None:
    mine, loader = epochs_of(LOADERS["distributed"], OWN, Play())
    loader.dataset.read.clear()

    mine[0][0].serve(OTHER, 3)

    assert len(loader.dataset.read) == 2  # one batch


def test_while_acting_the_iterator_is_that_rank_s_and_ours_waits() -> None:
    theirs, _ = epochs_of(LOADERS["distributed"], OTHER, None)
    play = Play()
    seed(OWN)
    loader = LOADERS["distributed"](Numbers(), OWN)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    first = next(iterator)
    play.acting_rank = OTHER
    iterator.seek(OTHER, 1)
    acted = [next(iterator), next(iterator)]
    play.acting_rank = None
    second = next(iterator)
    plain = list(ORIGINAL_ITER(LOADERS["distributed"](Numbers(), OWN)))

    assert torch.equal(torch.stack(acted), torch.stack(theirs[0][1][1:3]))
    assert torch.equal(torch.stack([first, second]), torch.stack(plain[:2]))
    assert iterator.count == 2


def test_several_iterators_of_one_loader_stand_apart() -> None:
    play = Play()
    loader = LOADERS["own sampler"](Numbers(), OWN)
    one, other = (
        LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=number)
        for number in range(2)
    )
    next(one), next(one), next(other)

    assert one.serve(OTHER, 0)[0, 0] == OTHER and other.serve(OTHER, 1)[0, 0] == OTHER + 2 * WORLD
    assert (one.count, other.count) == (2, 1)


def test_an_exhausted_iterator_says_so_and_still_serves() -> None:
    mine, _ = epochs_of(LOADERS["own sampler"], OWN, Play())
    iterator = mine[0][0]

    assert iterator.ended
    assert iterator.serve(OTHER, 0)[0, 0] == OTHER
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("name", LOADERS)
def test_fresh_data_do_not_shorten_our_own(name: str) -> None:
    plain, _ = epochs_of(LOADERS[name], OWN, None)
    play = Play()
    seed(OWN)
    loader = LOADERS[name](Numbers(), OWN)
    torch.rand(5)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    torch.rand(3)
    own = []
    for item in iterator:
        own.append(item)
        play.fresh = True
        extra = [next(iterator) for _ in range(3)]
        play.fresh = False
        assert all(one.shape[-1] == 2 for one in extra)

    assert len(own) == len(plain[0][1])


class Jittered(Numbers):
    """Draws from a generator of its own, if `noise`."""

    def __init__(self, noise: bool) -> None:
        super().__init__(noise)
        self.chance = numpy.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return index + (int(self.chance.integers(5)) if self.noise else 0)


@pytest.mark.parametrize("noise", [False, True])
def test_what_workers_draw_from_a_generator_of_the_data_set_cannot_be_told(noise: bool) -> None:
    data = Jittered(noise)
    loader: DataLoader[Any] = DataLoader(data, 2, sampler=distributed(OWN), num_workers=1)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=0)
    before = data.chance.bit_generator.state

    if noise:
        with pytest.raises(NotReplayable, match="Jittered draws from a generator of its own in wo"):
            iterator.serve(OTHER, 1)
    else:
        iterator.serve(OTHER, 1)

    assert data.chance.bit_generator.state == before


def test_an_empty_data_set_has_no_fresh_data() -> None:
    play = Play(fresh=True)
    loader: DataLoader[Any] = DataLoader([], batch_size=1)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)

    with pytest.raises(NotReplayable, match="empty"):
        next(iterator)


def test_a_sampler_that_stands_at_its_end_has_fresh_data() -> None:
    class Resumable(Sampler[int]):
        done = 0

        def __iter__(self) -> Iterator[int]:
            for index in range(self.done, 4):
                self.done = index + 1
                yield index
            self.done = 0

    play = Play()
    loader: DataLoader[Any] = DataLoader(Numbers(), sampler=Resumable())
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    own = [next(iterator) for _ in range(4)]
    play.fresh = True

    extra = [next(iterator) for _ in range(4)]

    assert all(torch.equal(*pair) for pair in zip(extra, own, strict=True))


def test_an_iterator_that_the_script_drops_is_gone() -> None:
    loader = LOADERS["own sampler"](Numbers(), OWN)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=4)
    next(iterator)
    kept = WeakSource(iterator)
    alive = kept.ended, kept.count

    del iterator

    assert alive == (False, 1)
    assert kept.ended
    with pytest.raises(NotReplayable, match="iterator 4"):
        kept.serve(OTHER, 0)


def test_what_is_kept_for_a_rank_is_dropped_on_request() -> None:
    mine, _ = epochs_of(LOADERS["own sampler"], OWN, Play())
    iterator = mine[0][0]
    iterator.seek(OTHER, 1)
    iterator.serve(OTHER, 1)

    iterator.forget(OTHER)

    assert not iterator.iterators and not iterator.positions


def test_a_lost_rank_that_has_no_more_data_is_not_replayable() -> None:
    iterator = LoaderIterator(DataLoader([1.5]), ORIGINAL_ITER, Play(), 0)  # type: ignore[arg-type]
    item = next(iterator)

    assert pairs_for_rank(item, [Draw(iterator, 0, item)], OTHER) == [(item, item)]
    with pytest.raises(
        NotReplayable, match=f"rank {OTHER} has run out of data, and this rank has not"
    ):
        pairs_for_rank(item, [Draw(iterator, 1, item)], OTHER)
