"""Beginning and end of a backward: a transaction is settled before the script's call returns."""

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.worker.errors import Unwind
from recoverrun.worker.step.backward_hooks import BackwardHooks
from recoverrun.worker.step.driver import Driver
from recoverrun.worker.step.failpoints import Failpoints
from recoverrun.worker.step.hooked_gradients import IN_BACKWARD, HookedGradients
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.mode import ExecutionMode
from rendezvous.protocol.progress_page import Phase


class Told:
    """A driver, and what it and the watcher of reductions by hand are told, in order."""

    def __init__(self, *, early: bool = True, by_hand: bool = False) -> None:
        self.told: list[Any] = []
        self.strategy = None if by_hand else SimpleNamespace(early=early)
        self.unvoted = None
        self.failpoints = Failpoints("", 0, before=lambda: None)
        self.protected = True
        self.refusals: list[str] = []
        self.runtime = SimpleNamespace(mode=ExecutionMode())
        self.replayer = SimpleNamespace(skips=lambda: False)
        self.worker = self
        driver: Any = self
        self.hooked = HookedGradients(driver)
        self.backwards = BackwardHooks(driver, lambda: self.told.append("by hand"))

    def backward_begins(self, losses: Any) -> None:
        self.told.append(("begins", losses))

    def backward_done(self) -> None:
        self.told.append("done")

    def hooks_gradients(self) -> None:
        self.told.append("hooked")
        self.hooked.found()

    def refuse(self, reason: str, *, snapshots: bool) -> None:
        assert not snapshots, "gradients are ours to reduce"
        self.refusals.append(reason)

    def give_back(self) -> None:
        WorkerState.give_back(cast("WorkerState", self))


def test_the_end_is_told_before_the_script_goes_on() -> None:
    driver = Told()

    def original(loss: str) -> None:
        driver.told.append("gradients")

    driver.backwards.around(original)("loss")

    assert driver.told == [("begins", "loss"), "gradients", "done"]


def test_a_loss_given_by_name_is_seen() -> None:
    driver = Told()

    driver.backwards.around(lambda tensors: None)(tensors="loss")

    assert driver.told == [("begins", "loss"), "done"]


def test_a_backward_inside_another_belongs_to_it() -> None:
    """`Tensor.backward` calls `autograd.backward`, and a checkpoint runs one within."""
    driver = Told()
    inner = driver.backwards.around(lambda loss: driver.told.append("gradients"))

    driver.backwards.around(inner)("loss")

    assert driver.told == [("begins", "loss"), "gradients", "done"]


def test_what_is_executed_as_a_backward_has_ended_begins_by_itself() -> None:
    """Lost microbatches are made up then."""
    driver = Told()

    def made_up() -> None:
        driver.backward_done = lambda: None  # type: ignore[method-assign]
        with driver.backwards.backward("lost"):
            ...

    driver.backward_done = made_up  # type: ignore[method-assign]
    with driver.backwards.backward("own"):
        ...

    assert driver.told == [("begins", "own"), ("begins", "lost")]


def test_every_backward_ends_by_itself() -> None:
    driver = Told()

    for loss in "ab":
        with driver.backwards.backward(loss):
            ...

    assert driver.told == [("begins", "a"), "done", ("begins", "b"), "done"]


def test_where_nothing_is_served_yet_it_may_be_one_that_is_reduced_by_hand() -> None:
    driver = Told(by_hand=True)

    driver.backwards.around(lambda loss: None)("loss")

    assert driver.told == [("begins", "loss"), "by hand", "done"]


def test_one_that_raises_has_brought_nothing() -> None:
    driver = Told()

    with pytest.raises(RuntimeError, match="no graph"):
        with driver.backwards.backward("loss"):
            raise RuntimeError("no graph")
    assert driver.told == [("begins", "loss")]
    driver.backwards.around(lambda loss: None)("another")

    assert driver.told[1:] == [("begins", "another"), "done"]


def test_re_executed_code_is_left_at_the_end_of_its_backward() -> None:
    driver = Told()

    def unwind() -> None:
        raise Unwind("backward")

    driver.backward_done = unwind  # type: ignore[method-assign]
    with pytest.raises(Unwind):
        driver.backwards.around(lambda loss: driver.told.append("gradients"))("loss")

    assert driver.told == [("begins", "loss"), "gradients"]


def test_what_belongs_to_earlier_microbatches_is_passed_over_but_for_what_is_inside_another() -> (
    None
):
    driver, left = Told(), [True, False]
    driver.replayer.skips = lambda: left.pop(0)
    inner = driver.backwards.around(lambda loss: driver.told.append("gradients"))
    backward = driver.backwards.around(inner)

    backward("earlier")
    backward("own")

    assert driver.told == [("begins", "own"), "gradients", "done"]
    assert left == []


def _module(name: str, driver: Told) -> Any:
    """Code of a module called so, which registers a hook."""
    module = ModuleType(name)
    wrapped = driver.backwards.hooking(torch.Tensor.register_post_accumulate_grad_hook)
    module.__dict__.update(register=wrapped)
    exec("def hook(tensor):\n    return register(tensor, lambda p: None)", module.__dict__)
    return module


@pytest.mark.parametrize(
    ("early", "refusals"), [(True, [IN_BACKWARD]), (False, [])], ids=["ddp", "fsdp"]
)
def test_who_steps_within_the_backward_is_not_served_where_gradients_are_taken_early(
    early: bool, refusals: list[str]
) -> None:
    driver = Told(early=early)

    handle = _module("train", driver).hook(torch.zeros(1, requires_grad=True))

    handle.remove()
    assert driver.told == ["hooked"]
    assert (driver.refusals, driver.runtime.mode.active) == (refusals, not refusals)


def test_a_forward_that_ddp_has_not_seen_as_its_own_is_reduced_by_us() -> None:
    driver = Told()
    driver.hooked.forward_begins()

    _module("train", driver).hook(torch.zeros(1, requires_grad=True))

    assert driver.refusals == [IN_BACKWARD]
    assert driver.runtime.mode.active
    driver.hooked.backward_done()
    assert not driver.runtime.mode.active


@pytest.mark.parametrize("module", ["torch.distributed.fsdp", "recoverrun.worker.strategies.ddp"])
def test_hooks_of_torch_s_own_and_of_ours_are_no_matter(module: str) -> None:
    driver = Told()

    _module(module, driver).hook(torch.zeros(1, requires_grad=True))

    assert not driver.told and not driver.refusals


@pytest.mark.parametrize("known", [False, True], ids=["no model was seen", "it is refused"])
def test_a_backward_of_who_is_not_served_is_a_mark_of_life(known: bool) -> None:
    """Else the launcher would take a script that trains for one that stands still."""
    marks: list[Any] = []
    worker = SimpleNamespace(
        strategy=object() if known else None, acting=False,
        runtime=SimpleNamespace(active=False), progress=SimpleNamespace(at=marks.append),
    )  # fmt: skip
    driver: Any = SimpleNamespace(
        worker=worker, replayer=SimpleNamespace(ends=lambda losses: None), _failure=None,
        _watches=False,
    )  # fmt: skip

    Driver.backward_begins(driver, "loss")

    assert marks == [Phase.FIRST]
