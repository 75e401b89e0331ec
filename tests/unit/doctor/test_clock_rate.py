"""Bounds of a clock's rate hold the truth, however long words are on their way."""

import random

import pytest

from recoverrun.doctor.clock_rate import SPAN_S, ClockRate


@pytest.mark.parametrize("rate", [1.0, 1.03, 0.97])
@pytest.mark.parametrize("seed", range(20))
def test_the_truth_lies_within_the_bounds(rate: float, seed: int) -> None:
    rng, clock = random.Random(seed), ClockRate()
    for number in range(8):
        said = 0.5 * number
        there = said + rng.expovariate(20)
        clock.hear(said, 100 + there / rate, there + rng.expovariate(20))

    found = clock.rate

    assert found is not None
    assert found.least <= rate <= found.most


def test_prompt_words_give_a_rate_within_a_tenth_of_a_per_cent() -> None:
    clock = ClockRate()
    for number in range(9):
        clock.hear(0.5 * number, 0.5 * number * 1.02 + 0.0005, 0.5 * number + 0.001)

    assert clock.rate is not None
    assert clock.rate.most - clock.rate.least < 0.001
    assert clock.rate.least < 1 / 1.02 < clock.rate.most


def test_words_that_are_too_near_tell_nothing() -> None:
    clock = ClockRate()
    clock.hear(0.0, 0.0, 0.1)
    clock.hear(SPAN_S, SPAN_S, SPAN_S + 0.1)
    assert clock.rate is None

    clock.hear(SPAN_S + 0.2, SPAN_S + 0.2, SPAN_S + 0.3)

    assert clock.rate is not None


def test_instants_that_cannot_be_are_left_out() -> None:
    clock = ClockRate()
    clock.hear(5.0, 1.0, 4.0)
    clock.hear(0.0, 9.0, 0.1)
    clock.hear(3.0, 8.0, 3.1)  # the peer's clock went back

    assert clock.rate is None
