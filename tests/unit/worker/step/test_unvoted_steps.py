"""Steps without votes are counted from one update to the top of the next training iteration."""

from types import SimpleNamespace
from typing import Any

from recoverrun.worker.step.unvoted_steps import UnvotedSteps


class Runtime:
    """A script with one loop that trains."""

    def __init__(self) -> None:
        self.regions: set[str] = set()
        self.microbatches: list[Any] = []
        self.training: set[str] = set()

    def note_backward(self) -> Any:
        self.training.add("train.py:5")
        self.microbatches.append(SimpleNamespace(top=top("train.py:5")))
        return self.microbatches[-1]

    def trains(self, loop: Any) -> bool:
        return loop.id in self.training


def top(loop_id: str) -> Any:
    return SimpleNamespace(loop=SimpleNamespace(id=loop_id))


def test_a_step_begins_with_the_first_training_iteration_after_an_update() -> None:
    runtime: Any = Runtime()
    steps = UnvotedSteps(runtime)

    steps.backward_done()
    assert not steps.begins(top("train.py:5"))  # gradients are only added up so far
    steps.updated = True
    assert not steps.begins(top("evaluate.py:9"))
    assert steps.begins(top("train.py:5")) and steps.index == 1
    assert not steps.begins(top("train.py:5"))


def test_two_updates_of_one_iteration_are_one_step() -> None:
    runtime: Any = Runtime()
    steps = UnvotedSteps(runtime)

    for _ in range(3):
        for _ in ("critic", "generator"):
            steps.backward_done()
            steps.updated = True
        assert steps.begins(top("train.py:5"))

    assert steps.index == 3


def test_nothing_is_kept_of_a_backward_but_where_it_was() -> None:
    runtime: Any = Runtime()

    UnvotedSteps(runtime).backward_done()

    assert runtime.microbatches == [] and runtime.regions == {"train.py:5"}


def test_what_optimizers_have_updated_is_known_once_and_in_order() -> None:
    runtime: Any = Runtime()
    steps = UnvotedSteps(runtime)
    first, second, third = object(), object(), object()
    for params in ([first, second], [first, second], [third, first]):
        steps.trains(SimpleNamespace(param_groups=[{"params": params}]))

    assert steps.trained == [first, second, third]
