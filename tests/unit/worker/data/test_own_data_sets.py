"""Iterable data sets that have cut out their rank's share as they were made."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.loader_clone import clone_for
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.own_data_sets import contents_of, put_in_place
from recoverrun.worker.data.rank_substitution import RankPair
from tests.unit.loaders import ORIGINAL_ITER, Play


class Lines(IterableDataset[int]):
    def __init__(self, files: list[int]) -> None:
        self.files, self.at = files, 0

    def __iter__(self) -> Iterator[int]:
        for file in self.files:
            self.at = file
            yield file


def test_what_was_put_in_the_place_of_ours_is_theirs() -> None:
    data = Lines([1, 3])
    begun = IterableSnapshot(data)
    ours = {id(data): dict(vars(data))}
    data.files = [2, 4]

    assert put_in_place(data, ours, begun) == {"files": [2, 4]}


def test_what_has_moved_in_the_pass_is_no_share() -> None:
    data = Lines([1, 3])
    begun = IterableSnapshot(data)
    next(iter(data))
    ours = {id(data): dict(vars(data))}
    data.files, data.at = [2, 4], 2

    assert put_in_place(data, ours, begun) == {"files": [2, 4]}


def test_an_entry_of_a_list_of_lists_is_theirs_and_what_has_moved_beside_it_is_not() -> None:
    data: Any = Lines([])
    data.read = {"docs": [[1, 3], [5]], "at": 0}
    begun = IterableSnapshot(data)
    data.read["at"] = 1
    source = LoaderIterator(DataLoader(data, batch_size=None), ORIGINAL_ITER, Play(), 0)
    ours = contents_of([source])
    data.read["docs"][0] = [2, 4]

    assert put_in_place(data, ours, begun) == {"read": {"docs": [[2, 4], [5]], "at": 0}}


def test_a_snapshot_of_ours_is_read_with_what_is_theirs() -> None:
    data = Lines([1, 3])
    loader = DataLoader(data, batch_size=None)
    snapshot = IterableSnapshot(data)
    theirs = [2, 4]

    clone = clone_for(loader, RankPair(0, 1), snapshot, theirs={"files": theirs})

    assert list(clone) == [2, 4]
    assert (data.files, data.at) == ([1, 3], 0)
    assert clone.dataset.files is not theirs  # it may shuffle them
