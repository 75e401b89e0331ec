"""Marks of tensors, and what becomes of a tensor that has changed and cannot travel."""

from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import loose_values
from recoverrun.worker.arrival.packing import CannotTravel, Packing
from recoverrun.worker.arrival.value_marks import is_of_training, mark_of
from recoverrun.worker.context.object_graph import holdings


class Tagged(torch.Tensor):
    pass


KINDS = [lambda: torch.eye(3).to_sparse(), lambda: torch.zeros(3).as_subclass(Tagged)]


def changed(held: dict[str, Any], change: Any) -> list[list[Any]]:
    """The tensors that another rank is told of once `change` is done."""

    def look() -> Any:
        return holdings([{"held": held}], frozenset()), [("<train>", {"held": held})]

    before = loose_values.marks(*look())
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


@pytest.mark.parametrize(
    "change", [lambda one: one.data.add_(1), lambda one: one.numpy().__setitem__(5, 1)]
)
def test_a_change_that_no_version_counts_is_told(change: Any) -> None:
    """As of an average of weights, which is larger than a plain value."""
    held = {"average": torch.zeros(300_000), "rests": torch.zeros(300_000)}

    told = changed(held, lambda held: change(held["average"]))

    assert [one[:2] for one in told] == [["held", "average"]]


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_a_small_view_at_any_place_in_memory_has_a_mark(offset: int) -> None:
    row = torch.zeros(8)[offset : offset + 1]
    before = mark_of(row)

    row.data.add_(1)

    assert mark_of(row) != before


def test_a_view_of_which_torch_tells_no_graph_is_a_result() -> None:
    """FSDP1 has such views of its flat parameters."""
    flat = torch.zeros(4)
    first, _ = flat.split(2)
    flat.mul_(torch.ones(4, requires_grad=True))
    with pytest.raises(RuntimeError, match="view"):
        _ = first.grad_fn

    assert is_of_training([first])
    assert not is_of_training([torch.zeros(2, requires_grad=True)])
