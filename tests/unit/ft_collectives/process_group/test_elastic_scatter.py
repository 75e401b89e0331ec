"""A rank that executes another's code gets nothing of a scatter that memory held by chance."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ft_collectives.process_group.elastic import ElasticGroup


@pytest.mark.parametrize("root", [0, 1])
def test_who_does_not_send_begins_with_zeros(root: int) -> None:
    """torch's gradient of an all_gather scatters into memory that it has not written to."""
    given: list[list[torch.Tensor]] = []

    def spread(
        call: str, tensors: list[torch.Tensor], root: int, *, named: bool, site: Any
    ) -> None:
        given.append(tensors)  # nobody else takes part

    alone: Any = SimpleNamespace(
        record=None,
        survivors=SimpleNamespace(require=lambda root, call: None, spread=spread),
        rank=lambda: 0,
        size=lambda: 2,
        _root=lambda call, opts: opts.rootRank,
    )
    out, sent = torch.full((3,), torch.nan), [torch.ones(3), torch.full((3,), 2.0)]

    ElasticGroup.scatter(alone, [out], [sent], SimpleNamespace(rootRank=root))

    assert out.tolist() == ([1.0] * 3 if root == 0 else [0.0] * 3)
    assert len(given[0]) == 2
