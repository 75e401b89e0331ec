"""Snapshots look into data sets and samplers of libraries, too."""

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, SequentialSampler, Subset, TensorDataset

from recoverrun.worker.arrival import loose_values, plain_values
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.snapshots import script_values


def look(loader: Any) -> Holdings:
    return script_values.found([sys._getframe()], frozenset(), last=frozenset())


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
