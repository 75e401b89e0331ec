"""Attempt and birth are told apart, and later processes have larger numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.protocol.incarnations import BIRTHS, attempt_of, birth_of, incarnation

ATTEMPTS = st.integers(0, 1 << 20)
ALL_BIRTHS = st.integers(0, BIRTHS - 1)


@given(ATTEMPTS, ALL_BIRTHS)
def test_attempt_and_birth_come_out_as_they_went_in(attempt: int, birth: int) -> None:
    number = incarnation(attempt, birth)

    assert (attempt_of(number), birth_of(number)) == (attempt, birth)


@given(ATTEMPTS, ALL_BIRTHS, ATTEMPTS, ALL_BIRTHS)
def test_a_later_process_has_a_larger_number(a: int, b: int, c: int, d: int) -> None:
    assert ((a, b) < (c, d)) == (incarnation(a, b) < incarnation(c, d))


@pytest.mark.parametrize(("attempt", "birth"), [(0, -1), (0, BIRTHS), (-1, 0)])
def test_a_birth_that_an_attempt_cannot_have_is_refused(attempt: int, birth: int) -> None:
    with pytest.raises(ValueError, match=f"attempt {attempt} has no birth {birth}"):
        incarnation(attempt, birth)
