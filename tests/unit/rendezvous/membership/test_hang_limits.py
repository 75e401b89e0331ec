"""The time for which a rank may keep others waiting: what is learned, and by which phase."""

import pytest

from rendezvous.membership.hang_limits import (
    KEPT_STEPS,
    LEAST_S,
    STEPS,
    TIMES,
    UNSEEN_S,
    UNSEEN_STEPS,
    HangLimits,
)
from rendezvous.protocol.progress_page import Phase


def after(steps: int, step_s: float) -> HangLimits:
    limits = HangLimits()
    for step in range(steps + 1):
        limits.stepped(step + 1, step * step_s)
    return limits


@pytest.mark.parametrize("phase", Phase)
def test_without_a_history_a_phase_of_every_step_has_seconds_and_others_a_minute(
    phase: Phase,
) -> None:
    often = phase in (Phase.MICROBATCH, Phase.DATA, Phase.SETTLE)

    assert HangLimits().limit_s(phase) == (LEAST_S if often else UNSEEN_S)


def test_slow_steps_make_long_limits() -> None:
    limits = after(steps=5, step_s=10.0)

    assert limits.limit_s(Phase.MICROBATCH) == limits.stopped_s == STEPS * 10.0
    assert limits.limit_s(Phase.BETWEEN) == UNSEEN_STEPS * 10.0


def test_one_long_step_does_not_make_steps_long() -> None:
    limits = after(steps=5, step_s=0.1)
    limits.stepped(7, 1000.0)

    assert limits.limit_s(Phase.MICROBATCH) == LEAST_S


def test_steps_between_which_some_were_not_heard_of_are_no_measure() -> None:
    limits = HangLimits()
    limits.stepped(1, 0.0)
    limits.stepped(40, 1000.0)
    limits.stepped(40, 2000.0)

    assert limits.limit_s(Phase.MICROBATCH) == LEAST_S


def test_who_came_late_raises_the_limit_of_its_phase_alone() -> None:
    limits = HangLimits()
    limits.came(Phase.DATA, 4.0)

    assert limits.limit_s(Phase.DATA) == TIMES * 4.0
    assert limits.limit_s(Phase.MICROBATCH) == LEAST_S


def test_the_longest_lag_counts_and_not_the_last() -> None:
    limits = HangLimits()
    for lag_s in (3.0, 40.0, 2.0):
        limits.came(Phase.DATA, lag_s)
        limits.came(Phase.BETWEEN, lag_s)

    assert limits.limit_s(Phase.DATA) == limits.limit_s(Phase.BETWEEN) == TIMES * 40.0


def test_a_lag_of_every_step_is_forgotten_and_an_evaluation_is_not() -> None:
    limits = HangLimits()
    for phase in (Phase.DATA, Phase.BETWEEN):
        limits.came(phase, 100.0)
    for step in range(KEPT_STEPS + 2):
        limits.stepped(step + 1, 0.1 * step)
    for phase in (Phase.DATA, Phase.BETWEEN):
        limits.came(phase, 0.0)

    assert limits.limit_s(Phase.DATA) == LEAST_S
    assert limits.limit_s(Phase.BETWEEN) == TIMES * 100.0
