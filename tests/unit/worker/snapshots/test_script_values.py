"""Snapshots look into data sets and samplers of libraries, too."""

import itertools
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler, Subset, TensorDataset

from recoverrun.worker.arrival import loose_values, plain_values
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import SMALL_BYTES, Holdings
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.snapshots import script_values
from recoverrun.worker.tracking.microbatches import LoopFrame
from tests.unit.loaders import ORIGINAL_ITER, Play


def look(loader: Any) -> Holdings:
    return script_values.found([sys._getframe()], frozenset(), stack=[])


def changed(loader: Any, change: Any) -> set[tuple[str, Any]]:
    """The places of what has changed in what `loader` leads to."""
    there = look(loader)
    digests, marks = plain_values.digests(there), loose_values.marks(there, [])
    change()
    there = look(loader)
    now = loose_values.marks(there, [])
    places = {key for key, mark in now.items() if marks.get(key) != mark}
    return places | {one.place for one in plain_values.changed(there, digests)}


def test_a_tensor_of_a_data_set_that_is_changed_in_place_is_seen() -> None:
    data = TensorDataset(torch.zeros(64, 32))
    loader = DataLoader(Subset(data, range(9)), batch_size=3)

    places = changed(loader, lambda: data.tensors[0].numpy().fill(1.0))

    assert places == {("loader.dataset.dataset.tensors", 0)}


def test_rows_of_a_subset_and_attributes_of_a_sampler_are_seen() -> None:
    data = Subset(TensorDataset(torch.zeros(64, 2)), [1, 2, 3])
    sampler: Any = SequentialSampler(data)
    sampler.level = 1
    loader = DataLoader(data, batch_size=3, sampler=sampler)

    def change() -> None:
        data.indices[:] = [4, 5]  # type: ignore[index]
        sampler.level = 2

    assert changed(loader, change) == {
        ("loader.dataset.indices", None),
        ("loader.sampler", "level"),
    }


def of_header(data: Any, wrapped: Any = iter) -> list[LoopFrame]:
    """A loop that goes over a loader which no variable holds."""
    items = LoaderIterator(loader=DataLoader(data, 2), make=ORIGINAL_ITER, runtime=Play(), number=0)
    loop = SimpleNamespace(rebinds=frozenset())
    return [cast("Any", SimpleNamespace(loop=loop, items=wrapped(items)))]


class Ahead:
    """An iterator of a class of the script's."""

    def __init__(self, items: Any) -> None:
        self.items = iter(items)

    def __next__(self) -> Any:
        return next(self.items)


@pytest.mark.parametrize("wrapped", [iter, enumerate, lambda items: (one for one in items), Ahead])
def test_what_a_loader_of_a_header_leads_to_is_seen(wrapped: Any) -> None:
    data = Subset(TensorDataset(torch.zeros(64, 2)), [1, 2, 3])
    cast("Any", data).level = 1
    stack = of_header(data, wrapped)
    del data

    there = script_values.found([], frozenset(), stack=stack)

    places = {one.place for one in plain_values.changed(there, {})}
    assert {
        ("loop 0 loader 0.dataset", "level"),
        ("loop 0 loader 0.dataset.indices", None),
    } <= places


class Stream:
    """Keeps what it has read, and no variable leads to it."""

    def __init__(self) -> None:
        self.read = [1, 2]

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.read.append(number)
            yield number


def pairs(stream: Stream) -> Iterator[tuple[int, int]]:
    rows = iter(stream)
    while True:
        yield next(rows), next(rows)


def test_what_a_generator_of_a_header_was_given_is_seen() -> None:
    items = pairs(Stream())
    next(items)
    loop: Any = SimpleNamespace(loop=SimpleNamespace(rebinds=frozenset()), items=items)

    there = script_values.found([], frozenset({__name__}), stack=[loop])

    places = {one.place for one in plain_values.changed(there, {})}
    assert ("loop 0 generator 0 stream.read", None) in places


def test_what_has_another_name_keeps_it() -> None:
    rows = [1, 2, 3]
    stack = of_header(Subset(TensorDataset(torch.zeros(64, 2)), rows))

    there = script_values.found([sys._getframe()], frozenset(), stack=stack)

    assert [path for path, one in there.held if one is rows] == ["rows"]


def test_large_tensors_of_a_header_are_data_unless_they_were_seen_before() -> None:
    stack = of_header(TensorDataset(torch.zeros(2000, SMALL_BYTES // 4000), torch.zeros(2000)))
    there = script_values.found([], frozenset(), stack=stack)

    def told(marks: dict[Any, Any]) -> list[Any]:
        data = script_values.data_of_headers(there, marks)
        packing = Packing([])
        found = loose_values.told(there, [], marks, frozenset(), packing, data=data)
        return [name for _, name, _ in found]

    assert told({}) == [1]
    seen = loose_values.marks(there, [])

    assert told(dict.fromkeys(seen, (0,))) == [0, 1]


class Counts(Dataset[int]):
    """Gives how often a row was read."""

    def __init__(self) -> None:
        self.hits: dict[int, int] = {}

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        self.hits[index] = self.hits.get(index, 0) + 1
        return self.hits[index]


def test_items_that_a_data_set_of_the_scripts_gives_are_told_with_the_loop() -> None:
    tensors = TensorDataset(torch.zeros(9))

    assert script_values.read_here(of_header(Subset(Counts(), [1, 2]))) == ["loop 0"]
    assert script_values.read_here(of_header(Counts(), enumerate)) == ["loop 0"]
    assert script_values.read_here(of_header(Subset(tensors, [1, 2]))) == []
