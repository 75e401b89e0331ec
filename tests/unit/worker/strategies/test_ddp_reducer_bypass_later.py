"""DDP is left out once a process comes that has not seen its first steps."""

from typing import Any, cast

import pytest
import torch

from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp_buckets import Gradients
from recoverrun.worker.strategies.ddp_reducer_bypass import BypassedGradients, why_never_still
from tests.unit.strategy_hosts import Host
from tests.unit.worker.strategies.test_ddp_reducer_bypass import ddp, part


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ((part(2, 3, counts=True),), True),
        ((part(1, counts=True), part(2, 3, counts=True)), False),
        ((part(1), part(1, dtype=torch.float64)), False),
    ],
)
def test_buckets_of_ddp_where_it_has_no_part_in_them_any_more(
    parts: tuple[Gradients, ...], whole: bool
) -> None:
    still = BypassedGradients(cast("StrategyHost", Host()))
    every = [param for one in parts for param in one.params]

    found, divided = still.division(parts)

    assert found == whole
    assert [id(param) for params in divided for param in params] == [id(one) for one in every]
    assert len(divided) == len(parts)


def test_buckets_that_are_ours_already_stay_as_they_are() -> None:
    still = BypassedGradients(cast("StrategyHost", Host()))
    still.settle(True)
    still.gradients = [part(1, 2)]

    whole, divided = still.division([part(1)])

    assert whole
    assert divided == [still.gradients[0].params]


@pytest.mark.parametrize(
    ("different", "why"),
    [
        ({"gradient_as_bucket_view": True}, ""),
        ({"find_unused_parameters": True, "static_graph": True}, ""),
        ({"mixed_precision": object()}, "DDP trains in mixed precision of its own"),
        ({"_delay_all_reduce_params": [object()]}, "DDP reduces some of the gradients by itself"),
    ],
)
def test_where_ddp_has_to_have_a_part(different: dict[str, Any], why: str) -> None:
    found = why_never_still(ddp(**different))

    assert found.startswith(why) if why else found == ""
