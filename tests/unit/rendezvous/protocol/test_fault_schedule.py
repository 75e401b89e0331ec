"""Fault schedules: what can be written can be read, and a seed means the same for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.protocol.fault_schedule import (
    ALL,
    MIDDLE,
    NO_STEP,
    OF,
    OF_SNAPSHOTS,
    ScheduledKill,
    ScheduleError,
    expand,
    expand_random,
    of_attempt,
    pace_ms,
    parse,
    render,
    require_snapshots,
)

PLACES = st.sampled_from([(when, phase) for when, phases in OF.items() for phase in phases])
KILLS = st.builds(
    lambda rank, place, number, bucket, who: ScheduledKill(
        rank=rank,
        when=place[0],
        step=number if place[0] == "step" else NO_STEP,
        nth=1 if place[0] == "step" else 1 + number,
        phase=place[1],
        bucket=bucket if place[1] == "reduce" else MIDDLE,
        node=who == "node",
        keeper=who == "keeper" and place[1] in OF_SNAPSHOTS,
    ),
    st.integers(0, 999),
    PLACES,
    st.integers(0, 99_999),
    st.integers(MIDDLE, 99),
    st.sampled_from(["", "node", "keeper"]),
)


def test_what_snapshots_have_may_end_as_well() -> None:
    assert parse("r3@step:12:snapshot, r3@step:12:parity, r3@step:12:restore") == tuple(
        ScheduledKill(rank=3, step=12, phase=phase) for phase in OF_SNAPSHOTS
    )
    assert parse("keeper@step:12, keeper3@step:12:restore") == (
        ScheduledKill(rank=0, step=12, phase="snapshot", keeper=True),
        ScheduledKill(rank=3, step=12, phase="restore", keeper=True),
    )
    assert parse("node@step:12, node3@step:12:parity") == (
        ScheduledKill(rank=0, step=12, phase="snapshot", node=True),
        ScheduledKill(rank=3, step=12, phase="parity", node=True),
    )
    assert parse("all@step:12, all@step:12:restore") == (
        ScheduledKill(rank=ALL, step=12, phase="backward"),
        ScheduledKill(rank=ALL, step=12, phase="restore"),
    )
    assert render(parse("all@step:12")) == "all@step:12:backward"
    assert expand("all@step:2", world=3, steps=9) == parse("all@step:2")


def test_what_is_of_a_way_back_is_for_the_attempt_after_the_first() -> None:
    text = "r0@step:13:forward,keeper0@step:10:restore,pace:50"

    assert of_attempt(text, 0) == "r0@step:13:forward,pace:50"
    assert of_attempt(text, 1) == "keeper0@step:10:restore,pace:50"
    assert of_attempt(text, 2) == "pace:50"


def test_what_only_snapshots_have_is_refused_without() -> None:
    for text in ("keeper@step:12", "r0@step:12:restore"):
        require_snapshots(parse(text), snapshots=True)
        with pytest.raises(ScheduleError, match="needs a job that takes snapshots"):
            require_snapshots(parse(text), snapshots=False)
    require_snapshots(parse("all@step:12"), snapshots=False)


@given(st.lists(KILLS, max_size=5))
def test_a_schedule_reads_as_it_was_written(kills: list[ScheduledKill]) -> None:
    assert parse(render(kills)) == tuple(kills)


def test_points_within_a_return_have_names_of_their_own() -> None:
    assert parse("r1@return:prologue, r1@return:2:forward") == (
        ScheduledKill(rank=1, when="return", phase="prologue"),
        ScheduledKill(rank=1, when="return", nth=2, phase="forward"),
    )
    assert parse("r0@welcome:3:reduce:2:node") == (
        ScheduledKill(rank=0, when="welcome", nth=3, phase="reduce", bucket=2, node=True),
    )


def test_a_pace_is_no_kill() -> None:
    text = render((ScheduledKill(rank=1, step=2, phase="vote"),), pace=250)

    assert text == "r1@step:2:vote,pace:250"
    assert (pace_ms(text), pace_ms("r1@step:2:vote")) == (250, 0)
    assert parse(text) == expand(text, world=2, steps=3) == parse("r1@step:2:vote")


def test_the_grammar_of_the_manual() -> None:
    assert parse("r3@step:12:reduce") == (ScheduledKill(rank=3, step=12, phase="reduce"),)
    assert parse("r0@step:1:reduce:2, r1@step:2:vote") == (
        ScheduledKill(rank=0, step=1, phase="reduce", bucket=2),
        ScheduledKill(rank=1, step=2, phase="vote"),
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
        "r3@return:hold",
        "r3@return:0:ready",
        "r3@welcome:ready",
        "r3@return:step:3:vote",
        "r3@step:1:prologue",
        "pace:",
        "keeper@step:12:forward",
        "keeper@step:12:restore:node",
        "keeper@return:ready",
        "all@welcome:send",
        "all@step:12:parity",
        "all3@step:12",
        "r3@return:snapshot",
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
    kills = expand_random(seed, n, 8, steps)

    assert len({kill.rank for kill in kills}) == len(kills) == n
    assert all(0 < kill.step < steps and 0 <= kill.rank < 8 for kill in kills)
    assert [kill.step for kill in kills] == sorted(kill.step for kill in kills)


def test_a_kill_outside_of_the_run_is_refused() -> None:
    for text in ("r4@step:1:vote", "r1@step:10:vote", "random:1:4"):
        with pytest.raises(ScheduleError):
            expand(text, world=4, steps=10)
