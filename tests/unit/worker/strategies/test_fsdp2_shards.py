"""Parameter groups of torch's FSDP2, which are whole between a forward and its backward."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.fsdp2 import Fsdp2
from recoverrun.worker.strategies.fsdp2_shards import Shards, switches_of
from tests.unit.strategy_hosts import Host


class Group:
    """As much of torch's `FSDPParamGroup` as is read and called here."""

    def __init__(self, *, sharded: bool = True) -> None:
        self.is_sharded = sharded
        self.reduce_grads = self.all_reduce_grads = True

    def forward(self) -> None:
        self.is_sharded = False

    def _to_sharded(self) -> None:
        self.is_sharded = True


@pytest.mark.parametrize("fails", [False, True])
def test_parameters_are_sharded_again_after_code_that_came_to_no_backward(fails: bool) -> None:
    groups = [Group(), Group()]
    switched = switches_of(groups)

    with pytest.raises(ValueError) if fails else switched():
        with switched():
            groups[0].forward()
            if fails:
                raise ValueError("the script's code")

    assert [one.is_sharded for one in groups] == [True, True]


def test_parameters_that_the_script_has_left_whole_stay_so() -> None:
    group = Group(sharded=False)

    with switches_of([group])():
        group.forward()

    assert not group.is_sharded


def test_gradients_of_a_group_that_the_script_had_frozen_in_part_are_put_back() -> None:
    """It was reduced with fewer parameters before, which belong to the group of then as well."""
    fsdp2 = Fsdp2(cast("StrategyHost", Host()))
    params: list[Any] = [
        SimpleNamespace(sharded_param=SimpleNamespace(grad=grad), unsharded_accumulated_grad=None)
        for grad in (1.0, 2.0)
    ]
    for number, held in enumerate((params[1:], params)):
        fsdp2._shards[number] = Shards(
            params=held, unsharded_sizes=(), shards=1, orig_dtype=None, average_over=1,
            post_divide=None, hook=None,
        )  # fmt: skip

    kept = fsdp2.set_aside()
    between = [one.sharded_param.grad for one in params]
    fsdp2.put_back(kept)

    assert between == [None, None]
    assert [one.sharded_param.grad for one in params] == [1.0, 2.0]
