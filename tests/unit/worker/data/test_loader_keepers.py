"""Objects of the script's that may keep a state below a loader."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.loader_keepers import give, held_by, keepers_of
from recoverrun.worker.errors import NotReplayable
from tests.unit.loaders import LOADERS, OWN, Numbers, Strided


class Lines(IterableDataset[int]):
    def __init__(self) -> None:
        self.place, self.rows, self.deep, self.other = 3, [1, 2], [[1]], Strided(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)


@pytest.mark.parametrize("name", ["shuffled", "distributed", "weighted"])
def test_samplers_of_torch_keep_none(name: str) -> None:
    assert not keepers_of(LOADERS[name](Numbers(), OWN))


def test_samplers_of_the_script_do_and_iterable_data_sets_in_this_process() -> None:
    sampler, data = Strided(0), Lines()

    assert keepers_of(DataLoader(Numbers(), 2, sampler=sampler)) == [sampler]
    assert keepers_of(DataLoader(data, 2)) == [data]
    assert not keepers_of(DataLoader(data, 2, num_workers=1))


def test_plain_values_are_given_where_they_lie() -> None:
    one, other = Lines(), Lines()
    held = held_by(one)
    other.place, other.rows[:] = 9, [9, 9, 9]
    rows, deep = other.rows, other.deep

    give([other], [held])

    assert (other.place, other.rows, other.rows is rows, other.deep is deep) == (
        3,
        [1, 2],
        True,
        True,
    )
    assert held["rows"] is not one.rows


def test_other_keepers_are_refused() -> None:
    held: list[Any] = [{}]

    with pytest.raises(
        NotReplayable, match="1 objects of its own that may keep a state, and 0 here"
    ):
        give([], held)
