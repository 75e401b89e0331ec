"""The script's changes of parameters while gradients wait to be reduced."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.step.unreduced_updates import UnreducedUpdates
from recoverrun.worker.strategies import grad_accumulators

SAID = "before step 7 was complete the script updated parameters with gradients that torch had not"


class Run:
    """Of rank 0 or another one, whose last backward was not reduced."""

    def __init__(self, rank: int = 0, exact: bool = False) -> None:
        self.params = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
        self.strategy: Any = SimpleNamespace(
            whole=lambda: self.params, standing=lambda: grad_accumulators.standing(self.params)
        )
        self.said: list[str] = []
        reporter: Any = SimpleNamespace(downgraded=self.said.append)
        guarantee = Guarantee(reporter, lambda: 1)
        guarantee.promise = "exact-samples"
        self.session: Any = SimpleNamespace(
            step=7,
            guarantee=guarantee,
            env=SimpleNamespace(rank=rank, exact=exact, error_file=""),
            joined=(),
        )
        sum(one.sum() for one in self.params).backward()
        self.between = UnreducedUpdates()
        self.between.left(self.strategy)

    def next_backward(self) -> None:
        self.between.heed(self.session, self.strategy)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_update_by_what_was_not_reduced_takes_the_promise_back(rank: int) -> None:
    run = Run(rank)
    torch.optim.SGD(run.params, lr=0.1).step()

    run.next_backward()
    run.next_backward()

    assert run.session.guarantee.promise == "equal-count"
    (said,) = run.said  # by each rank: the one that spoke for all could be lost before it is sent
    assert said.startswith(SAID)


def test_gradients_that_wait_for_others_are_no_update() -> None:
    run = Run()

    run.next_backward()

    assert run.session.guarantee.exact and not run.said


def test_gradients_that_were_dropped_are_changed_and_parameters_are_not() -> None:
    run = Run()
    torch.optim.SGD(run.params, lr=0.1).zero_grad()

    run.next_backward()

    assert run.between.gradients_changed(run.strategy) and run.session.guarantee.exact


def test_an_update_is_refused_to_who_asked_for_exact_sums() -> None:
    run = Run(exact=True)
    torch.optim.SGD(run.params, lr=0.1).step()

    with pytest.raises(SystemExit):
        run.next_backward()
