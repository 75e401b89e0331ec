"""Marks of tensors, and what becomes of a tensor that has changed and cannot travel."""

from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import loose_values
from recoverrun.worker.arrival.packing import CannotTravel, Packing
from recoverrun.worker.arrival.value_marks import mark_in_place, mark_of
from recoverrun.worker.context.object_graph import holdings


class Tagged(torch.Tensor):
    pass


KINDS = [lambda: torch.eye(3).to_sparse(), lambda: torch.zeros(3).as_subclass(Tagged)]


def changed(held: dict[str, Any], change: Any) -> list[list[Any]]:
    """The tensors that another rank is told of once `change` is done."""

    def look() -> Any:
        return holdings([{"held": held}], frozenset()), [("<train>", {"held": held})]

    before = loose_values.marks_in_place(*look())
    change(held)
    bound, data = frozenset[str](), frozenset[int]()
    return loose_values.changed_in_place(
        *look(), before=before, bound=bound, data=data, packing=Packing([])
    )


@pytest.mark.parametrize("make", KINDS)
def test_where_a_tensor_that_cannot_travel_has_changed_nobody_comes_back(make: Any) -> None:
    held = {"weights": make(), "others": make()}

    with pytest.raises(CannotTravel, match="held.'weights'.: a .* cannot travel"):
        changed(held, lambda held: held["weights"].mul_(2))
    with pytest.raises(CannotTravel, match="held.'others'.: a .* cannot travel"):
        changed(held, lambda held: held.update(others=make()))


@pytest.mark.parametrize("make", KINDS)
def test_one_that_has_not_changed_is_the_ranks_own(make: Any) -> None:
    assert changed({"weights": make()}, lambda held: None) == []


def test_what_is_written_to_a_tensor_beside_its_version_shows_in_the_mark_of_its_bits() -> None:
    tensor = torch.zeros(3)
    quick, whole = mark_in_place(tensor), mark_of(tensor)

    tensor.numpy()[1] = 1

    assert mark_in_place(tensor) == quick
    assert mark_of(tensor) != whole
