"""Many steps in little room: the median is near, and the sums are exact."""

from statistics import median_high

from hypothesis import given
from hypothesis import strategies as st

from recoverrun.reports.step_spans import LONG, StepSpans

SPANS = st.lists(st.integers(0, 10**9), min_size=1, max_size=200)


@given(SPANS)
def test_the_usual_step_is_the_median_within_a_class(spans: list[int]) -> None:
    known = StepSpans()
    for span in spans:
        known.add(span)

    middle = median_high(spans)
    assert abs(known.usual_us() - middle) <= max(1, 0.004 * middle)


@given(SPANS)
def test_nothing_is_lost_between_usual_and_long_steps(spans: list[int]) -> None:
    known = StepSpans()
    for span in spans:
        known.add(span)

    usual, beyond = known.split(known.usual_us())
    assert usual + beyond == sum(spans)
    assert usual >= 0 <= beyond


def test_only_what_is_beyond_the_usual_step_is_taken_from_a_long_one() -> None:
    known = StepSpans()
    for span in (*[1000] * 9, 1000 * LONG, 60_000):
        known.add(span)

    assert known.split(1000) == (9 * 1000 + 1000 * LONG + 1000, 59_000)


def test_a_copy_goes_its_own_way() -> None:
    known = StepSpans()
    known.add(5)
    other = known.copy()
    other.add(7)

    assert (known.steps, known.usual_us()) == (1, 5)
    assert other.steps == 2
