"""Gradients that a script all-reduces by hand: what is recognised, and what is noticed later."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from recoverrun.worker.strategies.manual_first_step import CHANGED, SEVERAL, TWICE, ObservedStep
from recoverrun.worker.strategies.manual_matching import (
    Factor,
    factor_of,
    mark,
    order_in,
    simplest,
    way_of,
)

SHAPES = ((4, 3), (1,), (3,), (2, 2))
SUM = dist.ReduceOp.SUM


def params(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    for param in made:
        param.grad = torch.randn_like(param)
    return made


def flat(of: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.grad.reshape(-1) for one in of if one.grad is not None])


def watched(world_size: int = 3) -> tuple[list[torch.Tensor], ObservedStep]:
    made = params()
    return made, ObservedStep(made, world_size)


# --------------------------------------------------------------------------- what is recognised


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 1, 0, 3), (3, 1), (2,)])
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 1 / 7, 0.75])
def test_gradients_are_found_in_any_order_times_any_factor(
    order: tuple[int, ...], factor: float
) -> None:
    made = params()
    gradients = [one.grad for one in made if one.grad is not None]
    told = flat([made[place] for place in order]) * factor

    assert order_in(told, gradients, (1.0, 1 / 3)) == (list(order), factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_is_found_through_the_roundings_of_a_type(dtype: torch.dtype) -> None:
    made = params(dtype)
    gradients = [one.grad for one in made if one.grad is not None]

    assert order_in(flat(made) / 3, gradients, (1.0, 1 / 3)) == ([0, 1, 2, 3], 1 / 3)


def test_what_holds_more_than_gradients_or_changed_ones_is_not_recognised() -> None:
    made = params()
    gradients = [one.grad for one in made if one.grad is not None]

    assert order_in(torch.cat([flat(made), torch.ones(1).double()]), gradients, (1.0,)) is None
    assert order_in(flat(made).clamp(-0.5, 0.5), gradients, (1.0,)) is None
    assert order_in(torch.tensor([0.3]).double(), gradients, (1.0,)) is None  # a loss


@pytest.mark.parametrize(
    ("found", "meant"), [(0.33333334, 1 / 3), (3.0000001, 3.0), (2.0**-16, 2.0**-16), (0.7, 0.7)]
)
def test_a_factor_is_the_same_on_all_ranks_to_the_last_bit(found: float, meant: float) -> None:
    assert simplest(found, 1e-7) == meant


@pytest.mark.parametrize("found", [0.0734512345, 1 / 51234.567, float("nan"), 0.0])
def test_a_factor_that_ranks_might_find_otherwise_is_none(found: float) -> None:
    assert simplest(found, 1e-7) is None


# --------------------------------------------------------------------------- the watched step


def test_a_flat_tensor_that_is_copied_back_is_served() -> None:
    made, watch = watched()
    told = flat(made)

    watch.saw(told, None, SUM, None)
    told.copy_(torch.randn_like(told))  # the sum
    for param, piece in watch.reductions[0].pieces(told):
        assert param.grad is not None
        param.grad.copy_(piece / 3)

    assert watch.conclude(made) == ""
    assert [id(one) for one in watch.reductions[0].params] == [id(one) for one in made]


def test_a_flat_tensor_that_nobody_copies_back_is_refused() -> None:
    made, watch = watched()
    told = flat(made)

    watch.saw(told, None, SUM, None)
    told.copy_(torch.randn_like(told))

    assert "not copied back" in watch.conclude(made)


def test_a_part_of_the_gradients_is_refused() -> None:
    made, watch = watched()
    told = flat(made[:2])

    watch.saw(told, None, SUM, None)
    told.copy_(torch.randn_like(told))

    assert "some gradients are not reduced" in watch.conclude(made)


def test_something_else_of_the_size_of_a_flat_tensor_is_refused() -> None:
    made, watch = watched()

    watch.saw(torch.ones(20).double(), None, SUM, None)
    watch.saw(flat(made), None, SUM, None)

    assert "of the same size" in watch.conclude(made)


def test_factors_are_found_one_by_one_as_the_script_goes() -> None:
    made, watch = watched()

    for param in made:
        assert param.grad is not None
        param.grad /= 3
        watch.saw(param.grad, param, SUM, None)

    assert (watch.conclude(made), watch.factor) == ("", Factor(1 / 3))


def test_several_factors_are_refused() -> None:
    made, watch = watched()

    for number, param in enumerate(made):
        assert param.grad is not None
        param.grad /= 3 + number
        watch.saw(param.grad, param, SUM, None)

    assert watch.conclude(made) == SEVERAL


def test_what_is_no_factor_is_refused() -> None:
    made, watch = watched()
    assert made[0].grad is not None
    made[0].grad.clamp_(-0.5, 0.5)

    watch.saw(made[0].grad, made[0], SUM, None)

    assert watch.conclude(made[:1]) == CHANGED


def test_gradients_reduced_between_two_backwards_are_refused() -> None:
    made, watch = watched()
    watch.saw(flat(made), None, SUM, None)

    assert ObservedStep(made, 3, watch).conclude(made) == TWICE


def test_a_mark_takes_no_notice_of_the_order_but_of_the_hundredth_part() -> None:
    values = torch.randn(64, 33, generator=torch.Generator().manual_seed(1))
    own = mark(values, 1.0)

    assert own.times(1.0, mark(values.t().contiguous(), 1.0))
    assert not own.times(1.0, mark(values * 1.01, 1.0))
    assert not own.times(1.0, mark(-values, 1.0))


@pytest.mark.parametrize(
    ("change", "divides"),
    [(lambda one: one / 3, [True]), (lambda one: one * (1 / 3), [False]),
     (lambda one: one / 2, [True, False]), (lambda one: one / 3 / 3, [])],
)  # fmt: skip
def test_how_a_factor_was_applied_is_known_by_its_bits(change: Any, divides: list[bool]) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    now = change(values)
    factor = factor_of(now, values, (1.0, 1 / 3))

    assert factor is not None
    assert way_of(now, values, factor) == divides
