"""One step of a pipeline's schedule is one backward, whose gradients are divided as they come."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.hooks.pipelines import ALONE, SCALED_TWICE, Pipelines


class Schedule:
    """As torch's do: the gradient of each part, then the division of the sum."""

    def __init__(self, parts: int, scales: bool = True) -> None:
        self._n_microbatches, self.scale_grads = parts, scales
        self._has_backward = True


def served(*, microbatch: int = 0, acting: bool = False, lends: bool = True) -> Any:
    lender = SimpleNamespace(parts=1, divisor=1) if lends else None
    said: list[str] = []
    gradient = torch.tensor([6.0])
    return SimpleNamespace(
        machine=object(),
        runtime=SimpleNamespace(active=True, hosts_move=False),
        impersonator=SimpleNamespace(replaying=False),
        strategy=SimpleNamespace(lender=lender, accumulators=lambda: [gradient]),
        microbatch=microbatch,
        acting=acting,
        refuse=said.append,
        said=said,
        gradient=gradient,
    )


def run(session: Any, schedule: Schedule) -> tuple[list[tuple[int, int]], list[int]]:
    """What the lender was told while the schedule ran, and which divisions were left to torch."""
    backwards: Any = SimpleNamespace(one=nullcontext)
    pipelines = Pipelines(session, backwards)
    seen: list[tuple[int, int]] = []
    divided: list[int] = []
    scale = pipelines.scale_grads(lambda stage, factor: divided.append(factor))

    def step(schedule: Schedule) -> None:
        lender = session.strategy.lender
        seen.append((lender.parts, lender.divisor) if lender is not None else (1, 1))
        if schedule.scale_grads:
            scale(None, schedule._n_microbatches)

    pipelines.step(step)(schedule)
    return seen, divided


def test_gradients_are_divided_as_they_come_and_not_again() -> None:
    session = served()

    assert run(session, Schedule(3)) == ([(3, 3)], [])
    assert (session.strategy.lender.parts, session.strategy.lender.divisor) == (1, 1)


def test_sums_are_left_as_they_are() -> None:
    assert run(served(), Schedule(3, scales=False)) == ([(3, 1)], [])


@pytest.mark.parametrize("served_as", ["not served", "given back", "sees its gradients"])
def test_torch_divides_what_it_reduces_itself(served_as: str) -> None:
    session = served(lends=served_as != "sees its gradients")
    if served_as == "not served":
        session.machine = session.strategy = None
        session.strategy = SimpleNamespace(lender=None)
    if served_as == "given back":
        session.runtime.active = False

    assert run(session, Schedule(3)) == ([(1, 1)], [3])


def test_a_second_step_divides_what_the_first_one_gave_once_more_as_torch_does() -> None:
    session = served(microbatch=1)

    run(session, Schedule(3))

    assert session.said == [SCALED_TWICE]
    assert session.gradient.item() == 2.0


def test_in_another_rank_s_place_nothing_of_our_own_is_divided() -> None:
    session = served(microbatch=1, acting=True)

    assert run(session, Schedule(3)) == ([(3, 3)], [])
    assert session.said == [] and session.gradient.item() == 6.0


def test_a_forward_pass_alone_is_refused_where_it_might_draw_numbers_of_python() -> None:
    session, said = served(), list[str]()
    session.impersonator.replaying = session.runtime.hosts_move = True
    session.runtime.spoil = said.append

    run(session, Schedule(3))

    assert said == [ALONE]


def test_an_evaluation_is_no_backward() -> None:
    session = served()
    schedule = Schedule(3)
    schedule._has_backward = False
    pipelines = Pipelines(session, None)  # type: ignore[arg-type]  # it must not be asked

    assert pipelines.step(lambda schedule: "outputs")(schedule) == "outputs"
