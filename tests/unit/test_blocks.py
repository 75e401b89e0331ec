"""Which ranks make up a replica, as two groups of a rank tell."""

from types import SimpleNamespace

import pytest

from recoverrun.hooks.blocks import layout_of
from recoverrun.hooks.data import Ranks


@pytest.mark.parametrize(
    ("shards", "replicas", "expected"),
    [
        ([0], [0, 1, 2, 3], ((0,), (1,), (2,), (3,))),
        ([2, 3], [1, 3], ((0, 1), (2, 3))),
        ([0, 1, 2, 3], [2], ((0, 1, 2, 3),)),
    ],
)
def test_replicas_of_neighbouring_ranks(
    shards: list[int], replicas: list[int], expected: tuple[tuple[int, ...], ...]
) -> None:
    layout = layout_of(4, shards, replicas)

    assert layout is not None and layout.replicas == expected


@pytest.mark.parametrize(
    ("shards", "replicas"),
    [
        ([0, 2], [0, 1]),  # replicas of every other rank
        ([0, 1], [0, 1]),  # two models, each trained by a half
        ([1, 2], [1, 3]),
        ([0, 1, 2], [0, 3]),
        ([0, 1], [0]),
    ],
)
def test_what_lies_otherwise_is_not_guessed_at(shards: list[int], replicas: list[int]) -> None:
    assert layout_of(4, shards, replicas) is None


def test_a_sampler_that_counts_replicas_is_given_the_other_replica() -> None:
    layout = layout_of(4, [2, 3], [0, 2])
    ranks = Ranks(own=3, other=1, layout=layout)

    assert ranks.of(SimpleNamespace(num_replicas=2, rank=1), 1) == 0
    assert ranks.of(SimpleNamespace(num_replicas=4, rank=3), 3) == 1
    assert ranks.of(SimpleNamespace(rank=3), 3) == 1
    assert ranks.of(SimpleNamespace(num_replicas=2, rank=0), 0) == 0
