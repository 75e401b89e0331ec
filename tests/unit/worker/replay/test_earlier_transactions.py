"""The remains of earlier transactions of an iteration, and parameters that are what they are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recoverrun.worker.replay.earlier_transactions import MOST, SETTLED, EarlierTransactions
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace
from tests.unit.contexts import loop


def iteration(name: str = "train.py:1") -> Any:
    return SimpleNamespace(loop=loop(name))


class Script:
    """Two parameters of two optimizers, and the transactions of its iterations."""

    def __init__(self) -> None:
        self.earlier = EarlierTransactions(regions={"train.py:1"})
        self.params = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
        self.optimizers = [torch.optim.SGD([param], 0.1) for param in self.params]
        self.ended = 0

    def transaction(self, *places: tuple[Any, int], accumulates: int = 1) -> list[float]:
        """One that ends with this backward of these iterations, and what it leaves."""
        self.ended += 1
        left = [10.0 * self.ended, 10.0 * self.ended + 1]
        for param, value in zip(self.params, left, strict=True):
            param.grad = torch.full((2,), value)
        microbatches = [
            Microbatch(n, tuple(MicrobatchPlace(top, skip + n) for top, skip in places))
            for n in range(accumulates)
        ]
        self.last = microbatches[-1]
        self.earlier.ended(microbatches, self.optimizers)
        return left

    def iterate(self, transactions: int, name: str = "train.py:1") -> Any:
        """One iteration with so many of them."""
        top = iteration(name)
        self.earlier.begins([top])
        for skip in range(transactions):
            self.transaction((top, skip))
        return top

    def given(self, top: Any, passed: int) -> list[float] | None:
        """The gradients once that backward was passed over; None: nothing was given."""
        for param in self.params:
            param.grad = None
        self.earlier.give(top, passed)
        grads = [param.grad for param in self.params if param.grad is not None]
        return [float(one[0]) for one in grads] or None

    @property
    def kept(self) -> int:
        return len(self.earlier._left)


# --------------------------------------------------------------------------- what is kept


def test_the_first_transaction_of_a_run_is_kept_in_case_another_one_follows() -> None:
    script, top = Script(), iteration()

    left = script.transaction((top, 0))

    assert script.given(top, 0) == left


def test_what_may_never_be_wanted_is_kept_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerator may lack the memory."""
    moves: list[Any] = []
    to = Tensor.to

    def moving(tensor: Tensor, device: Any = None, **how: Any) -> Tensor:
        moves.append(device)
        return to(tensor, device, **how)

    monkeypatch.setattr(Tensor, "to", moving)
    script = Script()

    script.iterate(3)

    host = torch.device("cpu")
    assert moves == [host, host, None, None, None, None], "of the first; and of two where they are"


def test_the_next_iteration_drops_what_was_left_in_the_one_before() -> None:
    script, before = Script(), iteration()
    script.transaction((before, 0))

    script.earlier.begins([iteration()])

    assert script.given(before, 0) is None and script.kept == 0


@pytest.mark.parametrize("chosen", [0, 1], ids=["from the inner one", "from the outer one"])
def test_what_was_left_is_kept_for_as_long_as_the_iteration_it_is_executed_again_from(
    chosen: int,
) -> None:
    """Within an outer iteration that is under way, an inner one begins anew."""
    script = Script()
    for _ in range(SETTLED):
        script.iterate(1, "before.py:1")
    inner, outer = iteration("train.py:5"), iteration("train.py:1")
    script.earlier._several.update({inner.loop.id: True, outer.loop.id: True})
    script.earlier.regions = {[inner, outer][chosen].loop.id}
    left = script.transaction((inner, 1), (outer, 1))

    script.earlier.begins([outer, iteration("train.py:5")])

    assert script.given(outer, 1) == (left if chosen else None)


def test_as_long_as_nobody_knows_which_one_that_is_it_is_kept_for_any() -> None:
    """A proof may find, one transaction later, that it is the outer one."""
    script = Script()
    inner, outer = iteration("train.py:5"), iteration("train.py:1")
    left = script.transaction((inner, 0), (outer, 0))

    script.earlier.begins([outer, iteration("train.py:5")])

    assert script.given(outer, 0) == left


def test_an_iteration_within_one_that_is_executed_again_drops_nothing() -> None:
    script, outer = Script(), iteration("train.py:1")
    left = script.transaction((outer, 0))

    script.earlier.begins([outer, iteration("train.py:5")])

    assert script.given(outer, 0) == left


def test_a_loop_whose_iteration_has_not_begun_keeps_nothing() -> None:
    """It is under way, but at none of its tops."""
    script = Script()
    script.transaction((iteration(), 0))

    script.earlier.begins([None])

    assert script.kept == 0


def test_a_transaction_without_a_microbatch_leaves_nothing() -> None:
    """Its updates were made in no loop: the next one is still the first."""
    script, top = Script(), iteration()
    script.earlier.ended([], script.optimizers)
    assert script.kept == 0

    left = script.transaction((top, 0))

    assert script.given(top, 0) == left


def test_a_loop_of_one_transaction_an_iteration_keeps_nothing_after_the_first() -> None:
    script = Script()
    script.iterate(1)

    later = [script.iterate(1) for _ in range(3)]

    assert [script.given(top, 0) for top in later] == [None] * 3 and script.kept == 0


@pytest.mark.parametrize("count", range(2, MOST + 1))
def test_a_loop_of_several_transactions_an_iteration_keeps_all_of_them(count: int) -> None:
    script = Script()
    script.iterate(count)

    top = script.iterate(count)

    firsts = [10.0 * (count + skip + 1) for skip in range(count)]
    assert [script.given(top, skip) for skip in range(count)] == [[n, n + 1] for n in firsts]


def test_the_first_iteration_keeps_all_of_its_transactions_too() -> None:
    script = Script()

    top = script.iterate(3)

    assert [script.given(top, skip) for skip in range(3)] == [[10, 11], [20, 21], [30, 31]]


def test_a_transaction_of_several_microbatches_is_one() -> None:
    script = Script()
    for _ in range(3):
        top = iteration()
        script.earlier.begins([top])
        script.transaction((top, 0), accumulates=3)

    assert script.kept == 0


def test_one_that_accumulates_is_found_by_its_last_backward() -> None:
    """Those before it left no more than a part of the sum."""
    script, top = Script(), iteration()

    left = script.transaction((top, 0), accumulates=2)

    assert (script.given(top, 0), script.given(top, 1)) == (None, left)


def test_what_is_known_of_one_loop_is_not_known_of_another() -> None:
    script = Script()
    script.iterate(2, "train.py:1")

    other = script.iterate(1, "tune.py:1")

    assert script.given(other, 0) is None


def test_a_loop_of_too_many_transactions_an_iteration_keeps_none_ever() -> None:
    """A whole epoch's, say."""
    script = Script()
    top = script.iterate(MOST + 1)
    assert [script.given(top, skip) for skip in range(MOST + 1)] == [None] * (MOST + 1)

    for count in (2, MOST + 3, 1, 3):
        top = script.iterate(count)
        assert script.kept == 0, count


def test_too_many_in_one_loop_leave_the_others_theirs() -> None:
    script = Script()
    script.iterate(2, "train.py:1")
    script.iterate(MOST + 2, "tune.py:1")

    top = script.iterate(2, "train.py:1")

    assert script.given(top, 0) is not None and script.kept == 2


def test_parameters_without_a_gradient_have_none_kept() -> None:
    script, top = Script(), iteration()
    first, second = script.params
    first.grad, second.grad = None, torch.ones(2)

    script.earlier.ended([Microbatch(0, (MicrobatchPlace(top, 0),))], script.optimizers)

    assert script.given(top, 0) == [1.0] and first.grad is None


# --------------------------------------------------------------------------- what is given


def test_only_the_backward_that_left_them_gives_gradients() -> None:
    script = Script()
    script.iterate(2)
    top = script.iterate(2)

    assert script.given(top, 2) is None
    assert script.given(iteration(), 0) is None, "another iteration of the same loop"


def test_every_iteration_around_counts_backwards_of_its_own() -> None:
    script = Script()
    inner, outer = iteration("train.py:5"), iteration("train.py:1")

    left = script.transaction((inner, 0), (outer, 3))

    assert script.given(inner, 0) == script.given(outer, 3) == left
    assert script.given(inner, 3) is None is script.given(outer, 0)


@pytest.mark.parametrize("first", [True, False], ids=["on the host", "where they are"])
def test_what_is_kept_is_nobody_else_s(first: bool) -> None:
    """The script zeroes its gradients in place, re-executed code scales them, twice."""
    script = Script()
    if not first:
        script.iterate(2)
    top = iteration()
    script.earlier.begins([top])
    left = script.transaction((top, 0))
    for param in script.params:
        assert param.grad is not None
        param.grad.zero_()

    for _ in range(2):
        assert script.given(top, 0) == left
        for param in script.params:
            assert param.grad is not None
            param.grad.mul_(0.5)


# --------------------------------------------------------------------------- what is taken back


def grads(script: Script) -> list[Tensor | None]:
    return [param.grad for param in script.params]


@pytest.mark.parametrize("had", [False, True], ids=["none", "some"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_was_given_is_taken_back(count: int, had: bool) -> None:
    """However many backwards were passed over, gradients are those from before the first."""
    script = Script()
    top = script.iterate(3)
    before = [torch.ones(2) if had else None for _ in script.params]
    for param, gradient in zip(script.params, before, strict=True):
        param.grad = gradient

    for passed in range(count):
        script.earlier.give(top, passed)
    assert all(now is not then for now, then in zip(grads(script), before, strict=True))
    script.earlier.take_back()

    assert all(now is then for now, then in zip(grads(script), before, strict=True))


def test_what_a_backward_has_left_stays() -> None:
    """It is the microbatch's own: the strategy takes it away before the others come back."""
    script = Script()
    top = script.iterate(2)
    first, second = script.params
    first.grad = second.grad = None
    script.earlier.give(top, 0)
    first.grad = None  # as the backward begins
    first.sum().backward()

    script.earlier.take_back()

    assert first.grad is not None and first.grad.tolist() == [1.0, 1.0]
    assert second.grad is None, "no backward has come to it"


def test_what_was_taken_back_is_not_taken_back_again() -> None:
    script = Script()
    top = script.iterate(2)
    script.earlier.give(top, 0)
    script.earlier.take_back()
    left = grads(script)

    script.earlier.take_back()

    assert all(now is then for now, then in zip(grads(script), left, strict=True))


def test_code_is_told_to_lack_the_gradients_of_a_backward_that_left_none_here() -> None:
    script = Script()
    top = script.iterate(MOST + 2)

    script.given(top, 0)
    told = script.earlier.lacked
    script.earlier.take_back()

    assert "not kept" in told and not script.earlier.lacked


def test_code_that_was_given_gradients_lacks_none() -> None:
    script = Script()
    top = script.iterate(2)

    script.given(top, 0)

    assert not script.earlier.lacked


def test_code_that_trains_without_an_optimizer_lacks_its_gradients() -> None:
    script = Script()
    script.optimizers.clear()
    top = script.iterate(2)

    script.given(top, 0)

    assert "not kept" in script.earlier.lacked
