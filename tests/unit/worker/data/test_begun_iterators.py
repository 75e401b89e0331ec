"""A loader that keeps a state is begun once more as its slot found it."""

import random
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.begun_iterators import begun_again
from recoverrun.worker.data.loader_keepers import held_by
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams
from tests.unit.loaders import read_on

pytestmark = pytest.mark.usefixtures("streams_put_back")


class Places(IterableDataset[float]):
    """Goes on where it is, up to 40."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[float]:
        while self.place < 40:
            self.place += 1
            yield self.place + random.random()


def test_it_begins_where_the_slot_began_it_and_nothing_else_moves() -> None:
    data = Places()
    one, data.place = read_on(DataLoader(data, 2), 3), 33
    before = read_streams()

    made = begun_again(one, 12, [{"place": 0}])

    assert (data.place, read_streams()) == (33, before)
    assert [int(number) for number in next(made.items).tolist()] == [34, 35]
    assert one.opening.found == [{"place": 0}]


def test_one_that_ends_too_soon_is_not_gone_back_to() -> None:
    data = Places()
    one, data.place = read_on(DataLoader(data, 2), 3), 33

    with pytest.raises(NotReplayable, match="a loader over a Places ended before item 12"):
        begun_again(one, 12, [held_by(data)])

    assert data.place == 33
