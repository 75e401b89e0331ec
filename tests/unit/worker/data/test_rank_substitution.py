"""Map-style data sets that carry the rank of their process: an item is another one on each rank."""

from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_clone import clone_for
from recoverrun.worker.data.rank_substitution import RankPair


class Batches(Dataset[Any]):
    """Cuts the batches of its rank out of an array; `draw` as data sets that augment have it."""

    def __init__(self, rank: int, world_size: int = 2) -> None:
        self.rank, self.world_size = rank, world_size
        self.draw = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([10 * (index * self.world_size + self.rank)])


class Wrapped(Dataset[Any]):
    def __init__(self, below: Dataset[Any]) -> None:
        self.below = below

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.below[index]


def items(made: "DataLoader[Any]") -> list[int]:
    return [int(one) for one in made]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("holder", [lambda data: data, Wrapped, lambda data: Subset(data, [2, 0])])
def test_a_map_style_data_set_is_read_as_the_rank_that_it_carries(
    holder: Any, workers: int
) -> None:
    made, theirs = (
        DataLoader(holder(Batches(rank)), batch_size=None, num_workers=workers) for rank in (0, 1)
    )

    clone = clone_for(made, RankPair(0, 1))

    assert items(clone) == items(theirs)
    assert items(made) == items(DataLoader(holder(Batches(0)), batch_size=None))


@pytest.mark.parametrize("sampler", [SequentialSampler, RandomSampler])
def test_samplers_go_through_the_copy(sampler: Any) -> None:
    data = Batches(0)
    clone = clone_for(DataLoader(data, 1, sampler=sampler(data)), RankPair(0, 1))

    assert clone.sampler.data_source is clone.dataset
    assert sorted(items(clone)) == items(DataLoader(Batches(1), 1))


def test_a_number_that_is_the_same_on_all_ranks_stays() -> None:
    """`rank` of a matrix, say: ranks tell each other what they carry there."""
    made = DataLoader(Batches(1, world_size=5), batch_size=None)
    own, theirs = Origin.of(made, None, ()), Origin.of(made, None, ())

    clone = clone_for(made, RankPair(1, 0, known=theirs.places_for(own)))

    assert own.rank_places == ((5, 1),)
    assert items(clone) == items(made)


def test_a_place_that_is_the_other_ranks_already_stays() -> None:
    """Of 8 ranks in groups of two, number 3 stands at 1 of 4, and 7 at 3: its own number."""
    data = TensorDataset(torch.arange(16))
    sampler = DistributedSampler(data, 4, 3, shuffle=False)
    ranks = RankPair(3, 7, known={(4, 1): 3})

    clone = clone_for(DataLoader(data, sampler=sampler), ranks)

    assert [int(row) for (row,) in clone] == [3, 7, 11, 15]
