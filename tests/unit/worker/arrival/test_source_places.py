"""The iterators of a lost rank, as a survivor tells of them."""

from dataclasses import replace

import pytest
import torch

from recoverrun.worker.arrival.source_places import (
    SourcePlace,
    told_opening,
    told_sources,
)
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.tracking.microbatches import LoopFrame
from tests.unit.contexts import at, loop
from tests.unit.loaders import LOADERS, ORIGINAL_ITER, OTHER, OWN, Numbers, Play, epochs_of, seed

pytestmark = pytest.mark.usefixtures("streams_put_back")

NAME = "shuffled by a generator of the rank"


def opened(name: str) -> LoaderIterator:
    seed(OWN)
    loader = LOADERS[name](Numbers(), OWN)
    torch.rand(5)
    made = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=0)
    torch.rand(3)
    return made


def test_what_a_lost_rank_left_of_its_iterators_is_told_and_moved_as_far_as_ours() -> None:
    theirs, other = epochs_of(LOADERS[NAME], OTHER, None)
    mine = opened(NAME)
    lost = LostRank(OTHER, apart=False)
    lost.learn(at(3, loaders={0: theirs[0][2]}), own := at(3, loaders={0: mine.origin}))
    next(mine)

    told = told_opening(mine, lost.origin(mine.number, mine.origin, [own]))

    assert told.origin == theirs[0][2]
    assert told.started is not None and mine.opening.started is not None
    assert told.started.generators != mine.opening.started.generator_states
    drawn = torch.Generator()
    drawn.set_state(torch.frombuffer(bytearray(theirs[0][2].generators[0]), dtype=torch.uint8))
    torch.empty((), dtype=torch.int64).random_(generator=drawn)  # the seed of the loader's workers
    assert told.started.generators[0] == bytes(drawn.get_state().tolist())


def test_a_generator_that_cannot_be_told_is_a_reason() -> None:
    mine = opened(NAME)
    next(mine)

    with pytest.raises(NotReachable, match="where a loader's own generator stands is unknown"):
        told_opening(mine, replace(mine.origin, generators=None))


def test_without_an_origin_the_place_alone_is_told() -> None:
    mine = opened(NAME)
    next(mine)
    held = LoopFrame(loop(kind="while"), 1, tested={id(mine): 1})

    [place] = told_sources([mine], held, lambda one: None)

    assert (place.number, place.before, place.count) == (0, 0, 1)
    assert place.opening.origin is None and place.opening.started is None
    assert SourcePlace.unpack(place.pack()) == place


def test_places_travel_as_plain_values() -> None:
    mine = opened("distributed")
    next(mine)
    held = LoopFrame(loop(), 1, counts={id(mine): 0})

    [place] = told_sources([mine], held)

    assert SourcePlace.unpack(place.pack()) == place
    packed = place.pack()
    for wrong in ([*packed[:5], ["x"], *packed[6:]], [*packed[:6], [None, [1], []], packed[7]]):
        with pytest.raises(ValueError, match="no "):
            SourcePlace.unpack(wrong)
