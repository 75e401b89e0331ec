"""One step of a pipeline is one backward, which ends before its gradients are divided."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.errors import Unwind
from recoverrun.worker.step.backward_hooks import BackwardHooks
from recoverrun.worker.step.failpoints import Failpoints
from recoverrun.worker.strategies.pipelines import Pipelines


class Schedule:
    """As torch's do: backwards of each part, then the division of the sum."""

    def __init__(self, parts: int, told: list[Any], scale: Callable[[Any, int], None]) -> None:
        self._n_microbatches, self._has_backward = parts, True
        self._told, self._scale = told, scale

    def step(self, *args: Any, **kwargs: Any) -> str:
        for part in range(self._n_microbatches):
            self._told.append(("part", part))
        self._scale(self, self._n_microbatches)
        return "outputs"


class Play:
    """A session, and all that is told to it or done by torch, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.strategy = object()
        self.worker, self.acting, self.in_schedule = self, False, False
        self.skipped = 0
        self.unvoted = None
        self.failpoints = Failpoints("", 0, before=lambda: None)
        self.replayer = SimpleNamespace(skips=self.skips)
        driver: Any = self
        self.pipelines = Pipelines(driver, BackwardHooks(driver, lambda: None))

    def skips(self) -> bool:
        self.skipped += 1
        return self.acting and self.skipped == 1

    @contextmanager
    def schedule(self) -> Iterator[None]:
        self.in_schedule = True
        try:
            yield
        finally:
            self.in_schedule = False

    def forward_begins(self, values: Any) -> None:
        self.told.append(("enters", values))

    def backward_begins(self, losses: Any) -> None:
        self.told.append("begins")

    def backward_done(self) -> None:
        self.told.append("done")
        if self.acting:
            raise Unwind("backward")

    def made(self, parts: int = 2) -> Schedule:
        divide = self.pipelines.scale_grads(lambda stage, by: self.told.append(("divided", by)))
        return Schedule(parts, self.told, divide)

    def step(self, schedule: Schedule, *args: Any, **kwargs: Any) -> Any:
        return self.pipelines.step(Schedule.step)(schedule, *args, **kwargs)


def test_the_transaction_is_settled_before_torch_divides_its_gradients() -> None:
    play = Play()

    assert play.step(play.made(), "x", target="y") == "outputs"

    assert play.told == [
        ("enters", ("x", "y")), "begins", ("part", 0), ("part", 1), "done", ("divided", 2)
    ]  # fmt: skip


def test_one_that_divides_nothing_is_settled_at_its_end() -> None:
    play = Play()
    schedule = play.made()
    schedule._scale = lambda stage, factor: None

    play.step(schedule)

    assert play.told[-2:] == [("part", 1), "done"]


def test_its_parts_are_no_microbatches_of_the_script() -> None:
    play = Play()
    seen: list[bool] = []
    schedule = play.made()
    schedule._scale = lambda stage, factor: seen.append(play.in_schedule)

    play.step(schedule)

    assert seen == [True] and not play.in_schedule


def test_it_is_over_after_an_error() -> None:
    play = Play()
    schedule = play.made()
    schedule._n_microbatches = None  # type: ignore[assignment]

    try:
        play.step(schedule)
    except TypeError:
        play.told.append("raised")

    assert play.told[-1] == "raised" and not play.in_schedule


def test_another_rank_s_microbatch_is_left_before_anything_is_divided() -> None:
    play = Play()
    play.acting, play.skipped = True, 1  # there is none before it

    try:
        play.step(play.made())
    except Unwind:
        play.told.append("left")

    assert play.told[-2:] == ["done", "left"]
    assert ("divided", 2) not in play.told


def test_a_step_of_an_earlier_microbatch_is_passed_over_in_another_rank_s_place() -> None:
    play = Play()
    play.acting = True

    assert play.step(play.made()) is None
    assert play.told == []


def test_an_evaluation_is_no_backward() -> None:
    play = Play()
    schedule = play.made()
    schedule._has_backward = False
    schedule._scale = lambda stage, factor: None

    assert play.step(schedule) == "outputs"
    assert play.told == [("part", 0), ("part", 1)]


# --------------------------------------------------------------------------- several stages


class Interleaved(Schedule):
    """Two stages of one rank: the first has ended while the other still has parts to go."""

    def step(self, *args: Any, **kwargs: Any) -> str:
        for stage in ("first", "second"):
            self._told.append(("backward", stage))
            self._scale(stage, self._n_microbatches)
        return "outputs"


def interleaved(play: Play) -> Interleaved:
    divide = play.pipelines.scale_grads(lambda stage, by: play.told.append(("divided", stage, by)))
    return Interleaved(2, play.told, divide)


def test_gradients_of_all_stages_are_divided_once_the_transaction_is_settled() -> None:
    play = Play()

    play.pipelines.step(Interleaved.step)(interleaved(play))

    assert play.told[2:] == [
        ("backward", "first"), ("backward", "second"), "done",
        ("divided", "first", 2), ("divided", "second", 2),
    ]  # fmt: skip


def test_none_is_divided_where_an_error_comes_and_none_of_it_by_the_next_step() -> None:
    play = Play()

    def fails(schedule: Interleaved) -> None:
        schedule.step()
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        play.pipelines.step(fails)(interleaved(play))
    assert not any(one[0] == "divided" for one in play.told)

    play.pipelines.step(Interleaved.step)(interleaved(play))

    assert play.told[-3:] == ["done", ("divided", "first", 2), ("divided", "second", 2)]


def test_gradients_that_the_script_scales_outside_of_a_step_are_scaled_at_once() -> None:
    play = Play()
    interleaved(play)._scale("stage", 3)

    assert play.told == [("divided", "stage", 3)]


def test_a_schedule_within_a_step_divides_its_own() -> None:
    play = Play()

    def nested(schedule: Interleaved) -> None:
        schedule._scale("outer", 2)
        play.pipelines.step(Interleaved.step)(interleaved(play))

    play.pipelines.step(nested)(interleaved(play))

    assert [one for one in play.told if one[0] == "divided"] == [
        ("divided", "first", 2), ("divided", "second", 2), ("divided", "outer", 2)
    ]  # fmt: skip


def test_gradients_that_were_there_before_a_stage_looks_at_what_it_sends_are_there_afterwards() -> (
    None
):
    model = nn.Linear(2, 2)
    model.weight.grad = given = torch.ones(2, 2)

    class Stage:
        submod = model

        def looks(self) -> None:
            self.submod(torch.ones(1, 2)).sum().backward()

        def cleans(self) -> None:
            for param in self.submod.parameters():
                param.grad = None

    pipelines, stage = Play().pipelines, Stage()
    pipelines.infers(Stage.looks)(stage)
    pipelines.inferred(Stage.cleans)(stage)

    assert model.weight.grad is given and torch.equal(given, torch.ones(2, 2))
    assert model.bias.grad is None
