"""Tensors and arrays that share memory as the run begins do so in another process, too."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recoverrun.worker.arrival import loose_values, memory_places, plain_values
from recoverrun.worker.arrival.packing import Packing, unpack
from recoverrun.worker.context.object_graph import Holdings, holdings

SMALL, LARGE = 4, 4000


def there(one: Any) -> Holdings:
    return holdings([{"one": one}], frozenset())


def gone_back(change: Callable[[Any], object], make: Callable[[], Any]) -> Any:
    """The same of another process once it has gone back."""
    first, second = make(), make()
    held = there(first)
    digests, marks = plain_values.digests(held), loose_values.marks(held, [])
    lay = memory_places.seen(held, [])
    change(first)
    held, packing = there(first), Packing([])
    values = plain_values.pack(plain_values.changed(held, digests), packing)
    loose = loose_values.told(held, [], marks, frozenset(), packing)
    told = memory_places.unmoved([*values, *loose], lay, memory_places.seen(held, []))
    lie = {(path, name) for path, name in told}
    tensors = [one.clone() for one in packing.tensors]
    plain_values.put(values, tensors, there(second), lie=lie)
    rows = [(path, name, unpack(packed, tensors)) for path, name, packed in loose]
    loose_values.put(there(second), [], rows, lie)
    return second


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_view_shows_what_the_whole_has(size: int) -> None:
    def make() -> Any:
        bank = torch.zeros(2, size)
        return SimpleNamespace(bank=bank, row=bank[1])

    second = gone_back(lambda one: one.row.add_(3), make)
    second.row.add_(1)

    assert second.bank[1].tolist() == [4.0] * size and not second.bank[0].any()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_the_first_state_is_what_it_was_under_another_name(size: int) -> None:
    def make() -> Any:
        first = torch.zeros(size)
        return SimpleNamespace(first=first, now=first)

    second = gone_back(lambda one: setattr(one, "now", one.now + 3), make)

    assert second.now.tolist() == [3.0] * size and not second.first.any()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_arrays_as_well(size: int) -> None:
    def make() -> Any:
        sums = np.zeros(size)
        return SimpleNamespace(sums=sums, meter={"sums": sums}, first=sums, now=sums)

    def change(one: Any) -> None:
        one.now = one.now + 5
        one.sums += 2

    second = gone_back(change, make)

    assert second.meter["sums"] is second.sums and (second.sums == 2).all()
    assert (second.now == 5).all()


def test_a_variable_that_was_bound_anew_is_what_an_object_holds() -> None:
    total = torch.zeros(2)
    meter = SimpleNamespace(total=total)
    held = memory_places.held([("<train>", "total")], there(meter), [("<train>", {"total": total})])
    now = {"total": torch.ones(2)}

    [(space, name, value)] = memory_places.put_back(held, there(meter), [("<train>", now)])

    assert (space, name) == ("<train>", "total")
    assert value is meter.total and value.tolist() == [1.0, 1.0]
