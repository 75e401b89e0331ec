"""Fault schedules: what can be written can be read, and a seed means the same for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.protocol.fault_schedule import (
    MIDDLE,
    PHASES,
    Kill,
    ScheduleError,
    expand,
    expand_random,
    parse,
    render,
)

KILLS = st.builds(
    lambda rank, step, phase, bucket: Kill(
        rank=rank, step=step, phase=phase, bucket=bucket if phase == "reduce" else MIDDLE
    ),
    st.integers(0, 999),
    st.integers(0, 99_999),
    st.sampled_from(PHASES),
    st.integers(MIDDLE, 99),
)


@given(st.lists(KILLS, max_size=5))
def test_a_schedule_reads_as_it_was_written(kills: list[Kill]) -> None:
    assert parse(render(kills)) == tuple(kills)


def test_the_grammar_of_the_manual() -> None:
    assert parse("r3@step:12:reduce") == (Kill(rank=3, step=12, phase="reduce"),)
    assert parse("r0@step:1:reduce:2, r1@step:2:vote") == (
        Kill(rank=0, step=1, phase="reduce", bucket=2),
        Kill(rank=1, step=2, phase="vote"),
    )
    assert parse("") == parse("  ") == ()


@pytest.mark.parametrize(
    "text",
    [
        "r3",
        "3@step:1:vote",
        "r3@step:1",
        "r3@step:1:nap",
        "r3@step:-1:vote",
        "r3@step:1:vote:2",
        "r3@step:1:reduce:x",
        "r3@step:1:vote,",
        "r٣@step:1:vote",
        "random:1",
        "random:1:2",
    ],
)
def test_what_is_no_schedule_is_refused_by_name(text: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        parse(text)

    assert text.rstrip(",") in str(refusal.value) or "''" in str(refusal.value)


def test_a_seed_is_a_schedule_that_never_changes() -> None:
    kills = expand("random:7:3", world=8, steps=10)

    assert render(kills) == "r5@step:4:forward,r7@step:7:backward,r3@step:8:forward"


@given(st.integers(0, 2**60), st.integers(0, 7), st.integers(2, 50))
def test_random_kills_spare_a_rank_and_the_first_step(seed: int, n: int, steps: int) -> None:
    kills = expand_random(seed, n, 8, steps, PHASES[:5])

    assert len({kill.rank for kill in kills}) == len(kills) == n
    assert all(0 < kill.step < steps and 0 <= kill.rank < 8 for kill in kills)
    assert [kill.step for kill in kills] == sorted(kill.step for kill in kills)


def test_a_kill_outside_of_the_run_is_refused() -> None:
    for text in ("r4@step:1:vote", "r1@step:10:vote", "random:1:4"):
        with pytest.raises(ScheduleError):
            expand(text, world=4, steps=10)
