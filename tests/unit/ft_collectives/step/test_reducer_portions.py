"""A survivor's own microbatches, as equal parts: what stands for one that nobody can execute."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ft_collectives.step.reducer import Bucket, Reducer

SIZE = 3


class Rank:
    """Its gradients by bucket: what they hold, and what they held before the transaction."""

    def __init__(self, **buckets: tuple[float, float | None]) -> None:
        none: Any = SimpleNamespace(launch=None, over=None)
        self.reducer = Reducer(none, none)
        self.buckets = dict(buckets)
        for key in buckets:
            self.reducer.register(self._bucket(key))
        self.reducer.include(buckets)

    def _bucket(self, key: str) -> Bucket:
        own, before = self.buckets[key]

        def carry(staging: torch.Tensor) -> bool:
            if before is not None:
                staging.fill_(before)
            return before is not None

        return Bucket(
            key=key,
            size=SIZE,
            dtype=torch.float64,
            fill=lambda staging: staging.fill_(own),  # type: ignore[arg-type]
            deliver=lambda total: None,
            carry=carry,
        )

    def share(self, parts: int, *, carried: bool) -> dict[Any, list[float]]:
        return {key: one.tolist() for key, one in self.reducer.share(parts, carried).items()}


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("carried", [False, True])
def test_a_share_is_a_part_of_what_the_transaction_has_added(carried: bool, parts: int) -> None:
    rank = Rank(weights=(14.0, 2.0))

    share = rank.share(parts, carried=carried)

    assert share == {"weights": [12.0 / parts + 2.0 * carried] * SIZE}


@pytest.mark.parametrize("carried", [False, True])
def test_a_bucket_that_held_nothing_before_is_shared_whole(carried: bool) -> None:
    rank = Rank(weights=(14.0, None))

    assert rank.share(4, carried=carried) == {"weights": [3.5] * SIZE}


@pytest.mark.parametrize("carried", [False, True])
def test_every_bucket_is_shared_by_what_it_held_itself(carried: bool) -> None:
    rank = Rank(weights=(14.0, 2.0), biases=(6.0, None), scales=(1.0, 9.0))

    share = rank.share(2, carried=carried)

    assert share == {
        "weights": [6.0 + 2.0 * carried] * SIZE,
        "biases": [3.0] * SIZE,
        "scales": [-4.0 + 9.0 * carried] * SIZE,
    }


def test_buckets_that_are_not_of_this_transaction_have_no_share() -> None:
    rank = Rank(weights=(14.0, 2.0), biases=(6.0, None))
    rank.reducer.begin()
    rank.reducer.include(["biases"])

    assert rank.share(2, carried=True) == {"biases": [3.0] * SIZE}


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_all_shares_of_which_the_first_carries_are_the_sum_with_what_was_there(parts: int) -> None:
    """As a slot's microbatches are made up: torch reduces what it had before, too."""
    rank = Rank(weights=(14.0, 2.0))

    shares = [rank.share(parts, carried=not index)["weights"] for index in range(parts)]

    assert torch.tensor(shares).sum(0).tolist() == pytest.approx([14.0] * SIZE)


def test_sharing_leaves_the_gradients_and_what_was_before_alone() -> None:
    own, before = torch.full((SIZE,), 14.0), torch.full((SIZE,), 2.0)
    none: Any = SimpleNamespace(launch=None, over=None)
    reducer = Reducer(none, none)

    def carry(staging: torch.Tensor) -> bool:
        staging.copy_(before)
        return True

    reducer.register(
        Bucket(
            key="weights", size=SIZE, dtype=torch.float32,
            fill=lambda staging: staging.copy_(own),  # type: ignore[arg-type]
            deliver=lambda total: None, carry=carry,
        )
    )  # fmt: skip
    reducer.include(["weights"])

    first = reducer.share(2, True)["weights"]
    first.zero_()

    assert reducer.share(2, True)["weights"].tolist() == [8.0] * SIZE
    assert (own.tolist(), before.tolist()) == ([14.0] * SIZE, [2.0] * SIZE)


@pytest.mark.parametrize(
    ("before", "carries"), [((None, None), False), ((0.0, None), False), ((None, 2.0), True)]
)
def test_a_transaction_carries_on_where_a_bucket_held_more_than_zeros(
    before: tuple[float | None, float | None], carries: bool
) -> None:
    rank = Rank(weights=(14.0, before[0]), biases=(6.0, before[1]))

    assert rank.reducer.carries() is carries
