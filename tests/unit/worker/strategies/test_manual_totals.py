"""Later steps of a script that all-reduces by hand: what is reduced, and what it is answered."""

import pytest
import torch

from recoverrun.worker.strategies.manual_matching import Factor, Reduction
from recoverrun.worker.strategies.manual_totals import Sums
from tests.unit.worker.strategies.test_manual_allreduce import flat, params


def served(factor: float, *, copied: bool = True) -> tuple[list[torch.Tensor], Sums]:
    made = params()
    groups = [made] if copied else [[one] for one in made]
    reductions = [Reduction(params=one, copied=copied, averages=False) for one in groups]
    sums = Sums(made, reductions, factor=Factor(factor), world_size=3)
    sums.begin()
    return made, sums


def reduce(sums: Sums, ranks: int = 3) -> None:
    """As if all ranks had the same gradients."""
    for bucket in sums.buckets():
        staging = torch.empty(bucket.size, dtype=bucket.dtype)
        bucket.fill(staging)
        bucket.deliver(staging * ranks)


def test_a_flat_tensor_is_answered_with_the_sums_of_what_it_held() -> None:
    made, sums = served(1 / 3)
    own = flat(made)
    told = own / 3
    reduction = sums.asked(told, None)

    assert reduction is not None and not sums.uneven(reduction, told, made)
    reduce(sums)
    sums.answer(reduction, told, True)

    torch.testing.assert_close(told, own)  # three times a third
    assert not sums.unasked


def test_gradients_that_are_multiplied_one_by_one_are_each_multiplied_once() -> None:
    made, sums = served(1 / 3, copied=False)
    own = [one.grad.clone() for one in made if one.grad is not None]

    for param in made:
        assert param.grad is not None
        param.grad /= 3
        reduction = sums.asked(param.grad, param)
        assert reduction is not None
        first = param is made[0]
        if first:
            assert not sums.uneven(reduction, param.grad, made)
            reduce(sums)
        sums.answer(reduction, param.grad, first)

    for param, gradient in zip(made, own, strict=True):
        torch.testing.assert_close(param.grad, gradient)


def test_a_gradient_that_had_none_in_the_first_step_is_uneven() -> None:
    made, sums = served(1.0)
    told = flat(made)
    reduction = sums.asked(told, None)
    new = torch.zeros(3)
    new.grad = torch.ones(3)

    assert reduction is not None and sums.uneven(reduction, told, [*made, new])


def test_what_a_rank_changed_alone_is_its_part_of_the_sum() -> None:
    made, sums = served(1.0)
    told = flat(made).clamp(-0.5, 0.5)
    meant = told * 3
    reduction = sums.asked(told, None)

    assert reduction is not None and sums.uneven(reduction, told, made)
    sums.adopt(reduction, told)
    reduce(sums)
    sums.answer(reduction, told, True)

    torch.testing.assert_close(told, meant)


def test_sums_that_are_changed_before_the_script_asks_for_them_end_the_run() -> None:
    made, sums = served(1.0, copied=False)
    first, second = made[0], made[3]
    assert first.grad is not None and second.grad is not None
    reduction = sums.asked(first.grad, first)
    assert reduction is not None and not sums.uneven(reduction, first.grad, made)
    reduce(sums)
    sums.answer(reduction, first.grad, True)

    second.grad.clamp_(-0.5, 0.5)
    reduction = sums.asked(second.grad, second)

    assert reduction is not None
    with pytest.raises(RuntimeError, match="changed before they are reduced, unlike in the first"):
        sums.answer(reduction, second.grad, False)


def test_a_gradient_of_fewer_parameters_is_a_smaller_tensor() -> None:
    made, sums = served(1.0)

    made[1].grad = None

    assert sums.asked(flat(made), None) is not None
    assert sums.asked(torch.zeros(20).double(), None) is None


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("copied", [True, False])
def test_what_is_reduced_has_the_bits_that_the_script_would_have_given_it(
    divides: bool, copied: bool
) -> None:
    """Of gradients that it has not come to yet, too."""
    made = [torch.zeros(1000, dtype=torch.float32, requires_grad=True) for _ in range(2)]
    for seed, param in enumerate(made):
        param.grad = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
    factor = Factor(1 / 3, divides)
    groups = [made] if copied else [[one] for one in made]
    reductions = [Reduction(params=one, copied=copied, averages=False) for one in groups]
    sums = Sums(made, reductions, factor=factor, world_size=3)
    sums.begin()
    own = [one.grad.clone() for one in made if one.grad is not None]
    meant = torch.cat([one / 3 if divides else one * (1 / 3) for one in own])
    told = meant.clone() if copied else made[0].grad
    assert told is not None
    if not copied:
        told.copy_(meant[:1000])
    reduction = sums.asked(told, None if copied else made[0])

    assert reduction is not None and not sums.uneven(reduction, told, made)
    given = [torch.empty(bucket.size) for bucket in sums.buckets()]
    for bucket, staging in zip(sums.buckets(), given, strict=True):
        bucket.fill(staging)

    assert torch.equal(torch.cat(given), meant)
    assert made[1].grad is not None and torch.equal(made[1].grad, own[1]), "as under torchrun"


def test_a_reduction_is_as_long_as_the_gradients_that_there_are() -> None:
    made, sums = served(1.0)
    made[1].grad = None

    (bucket,) = sums.buckets()

    assert bucket.size == flat(made).numel()
