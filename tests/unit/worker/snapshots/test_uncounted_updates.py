"""Updates that belong to no step end snapshots once there are many."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.optim import SGD

from recoverrun.worker.groups import process_groups
from recoverrun.worker.snapshots.uncounted_updates import (
    APART,
    BACKWARDS,
    BY_HAND,
    CHANGES,
    ITSELF,
    MORE,
    WITHIN,
    UncountedUpdates,
)


class Play:
    """A worker of two that has neither a model that is served nor a promise."""

    def __init__(self, loops: set[str]) -> None:
        self.reasons: list[str] = []
        self.steps = SimpleNamespace(updated=False)
        worker = SimpleNamespace(
            runtime=SimpleNamespace(training_loops=loops, why_no_loop=lambda: "it is in no loop"),
            take_no_snapshots=self.reasons.append,
            guarantee=SimpleNamespace(promise=None),
            env=SimpleNamespace(world_size=2),
            strategy=None,
        )
        self.optimizers: list[Any] = []
        self.uncounted = UncountedUpdates(
            cast("Any", worker), cast("Any", self.steps), lambda: self.optimizers
        )


@pytest.mark.parametrize("loops", [set[str](), {"train.py:5"}])
@pytest.mark.parametrize("optimizers", [1, 40])
def test_a_script_that_trains_in_no_loop_has_none_and_says_so(
    loops: set[str], optimizers: int
) -> None:
    """Optimizers of each parameter, which step within the backward, take one step together."""
    play = Play(loops)

    def train() -> None:
        play.uncounted.backward_begins()
        for _ in range(optimizers):
            play.uncounted.updated()

    for _ in range(WITHIN - 1):
        train()
    assert play.steps.updated and not play.reasons
    train()
    train()

    assert play.reasons == ([] if loops else ["it is in no loop"])


@pytest.mark.parametrize("optimizers", [0, 1])
def test_a_script_without_an_optimizer_has_none_and_says_so(optimizers: int) -> None:
    """One with an optimizer may add up as many gradients as it likes."""
    play = Play({"train.py:5"})
    play.optimizers = [SGD([torch.ones(3, requires_grad=True)])] * optimizers

    for _ in range(BACKWARDS - 1):
        play.uncounted.backward_begins()
    assert not play.reasons
    for _ in range(2 * CHANGES):
        play.uncounted.backward_begins()

    assert play.reasons == ([] if optimizers else [BY_HAND.format(BACKWARDS)])


@pytest.mark.parametrize("steps", [0, 10, CHANGES - 1])
def test_a_script_that_updates_parameters_beside_its_optimizer_has_none(steps: int) -> None:
    """It may do so for a while, as in an inner loop, if its optimizer makes an update then."""
    play = Play({"train.py:5"})
    param = torch.ones(3, 50, requires_grad=True)
    play.optimizers = [SGD([param])]

    for number in range(1, CHANGES + 3):
        assert not play.reasons
        play.uncounted.backward_begins()
        param.data[0, 0] -= 0.1
        if steps and not number % steps:
            play.uncounted.updated()

    assert play.reasons == ([] if steps else [ITSELF.format(CHANGES)])


def test_after_updates_the_script_may_make_some_times_as_many_changes_as_between_two_of_them() -> (
    None
):
    play = Play({"train.py:5"})
    param = torch.ones(3, 50, requires_grad=True)
    play.optimizers = [SGD([param])]
    for changes in (CHANGES - 10, MORE * (CHANGES - 12)):
        for _ in range(changes):
            play.uncounted.backward_begins()
            param.data[0, 0] -= 0.1
        play.uncounted.updated()

    assert not play.reasons


def test_what_an_optimizer_changes_between_the_backwards_of_its_closure_is_its_own() -> None:
    """As that of `torch.optim.LBFGS` does."""
    play = Play({"train.py:5"})
    param = torch.ones(3, 50, requires_grad=True)
    play.optimizers = [SGD([param])]

    for _ in range(2):
        play.uncounted.update_begins()
        for _ in range(CHANGES + 3):
            play.uncounted.backward_begins()
            param.data[0, 0] -= 0.1
        play.uncounted.updated()

    assert not play.reasons


def test_gradients_may_be_added_up_over_any_number_of_microbatches() -> None:
    play = Play({"train.py:5"})
    play.optimizers = [SGD([torch.ones(3, requires_grad=True)])]

    for _ in range(4 * CHANGES):
        play.uncounted.backward_begins()
    play.uncounted.updated()

    assert not play.reasons


def test_processes_that_have_met_no_other_one_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "several", lambda: False)
    play = Play({"train.py:5"})

    for _ in range(WITHIN):
        assert not play.reasons
        play.uncounted.updated()
        assert not play.uncounted.iteration_begins()

    assert play.reasons == [APART]
