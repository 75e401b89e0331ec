"""The ranks that make up a replica, as two groups of a rank tell."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from recoverrun.worker.data.rank_substitution import RankPair
from recoverrun.worker.groups.topology import layout_of, layout_of_mesh


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
    ranks = RankPair(own=3, other=1, layout=layout)

    assert ranks.of(SimpleNamespace(num_replicas=2, rank=1), 1) == 0
    assert ranks.of(SimpleNamespace(num_replicas=4, rank=3), 3) == 1
    assert ranks.of(SimpleNamespace(rank=3), 3) == 1
    assert ranks.of(SimpleNamespace(num_replicas=2, rank=0), 0) == 0


def cut(names: tuple[str, ...], shape: tuple[int, ...], wanted: tuple[str, ...]) -> object:
    """The part of a mesh of all ranks which torch cuts out, without its groups."""
    ranks = torch.arange(torch.Size(shape).numel()).view(shape)
    whole = DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=0)
    layout = whole._get_slice_mesh_layout(wanted)
    parts = layout.remap_to_tensor(whole._rank_map)
    return SimpleNamespace(
        ndim=len(wanted),
        mesh=parts[0],
        size=parts[0].numel,
        _layout=layout,
        _rank_map=whole._rank_map,
    )


@pytest.mark.parametrize(
    ("names", "shape", "wanted", "expected"),
    [
        (("r", "s"), (2, 2), ("r", "s"), ((0, 1), (2, 3))),
        (("r", "s", "tp"), (2, 2, 2), ("r", "s"), ((0, 1, 2, 3), (4, 5, 6, 7))),
        (("pp", "r", "s"), (2, 2, 2), ("r", "s"), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (("pp", "r", "s", "tp"), (2, 2, 1, 2), ("r", "s"), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (("r", "tp"), (3, 2), ("r",), ((0, 1), (2, 3), (4, 5))),
    ],
)
def test_a_mesh_cut_from_a_larger_one_tells_the_replicas_of_the_world(
    names: tuple[str, ...],
    shape: tuple[int, ...],
    wanted: tuple[str, ...],
    expected: tuple[tuple[int, ...], ...],
) -> None:
    world = torch.Size(shape).numel()

    layout = layout_of_mesh(world, cut(names, shape, wanted), sharded=len(wanted) == 2)

    assert layout is not None and layout.replicas == expected


def test_a_mesh_of_another_torch_is_known_as_a_whole_alone() -> None:
    whole = SimpleNamespace(ndim=2, mesh=torch.tensor([[0, 2], [1, 3]]), size=lambda: 4)

    layout = layout_of_mesh(4, whole, sharded=True)

    assert layout is not None and layout.replicas == ((0, 2), (1, 3))
    assert layout_of_mesh(8, whole, sharded=True) is None


def test_meshes_that_leave_ranks_out_tell_nothing() -> None:
    assert layout_of_mesh(5, cut(("r", "s"), (2, 2), ("r", "s")), sharded=True) is None
    assert layout_of_mesh(4, cut(("r", "s"), (2, 2), ("r", "s")), sharded=False) is None
