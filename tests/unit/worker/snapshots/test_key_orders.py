"""Dicts give what they hold in the order in which the script has put it there."""

from typing import Any

import pytest
import torch

from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.snapshots import key_orders
from tests.unit.ways_back import gone_back

TEXT = """
from collections import OrderedDict
import torch

class Best: pass

class Own:
    def __init__(self):
        self.best, self.sums = None, OrderedDict(first=torch.zeros(300, 300), last=1.0)

own = Own()
"""


def test_entries_that_come_by_several_ways_have_the_order_that_they_had() -> None:
    def train(module: Any) -> None:
        held = {"b": torch.ones(300, 300), "a": 1, "d": module.Best(), "c": torch.ones(2)}
        module.own.best = held
        module.own.sums.move_to_end("first")
        module.own.sums["late"] = torch.ones(300, 300)
        module.own.sums["later"] = 1.0

    _, other = gone_back(TEXT, train)

    assert list(other.own.best) == ["b", "a", "d", "c"]
    assert list(other.own.sums) == ["last", "first", "late", "later"]


def _there(held: dict[Any, Any]) -> Holdings:
    return holdings([{"held": held}], frozenset())


@pytest.mark.parametrize("keys", [["a", "b"], ["b"], ["a", "b", ("c", 1)]])
def test_nothing_is_told_where_there_is_nothing_to_tell(keys: list[Any]) -> None:
    before = key_orders.orders_of(_there({"a": 1, "b": 2}))

    assert key_orders.told(_there(dict.fromkeys(keys, 1)), before, Packing([])) == []


def test_numbers_that_are_ids_of_parameters_have_no_order() -> None:
    params = [torch.zeros(1), torch.zeros(1)]
    there = _there({id(one): 0 for one in params})

    assert key_orders.told(there, {}, Packing([], params)) == []
