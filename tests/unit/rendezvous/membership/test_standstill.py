"""Hangs: seen by comparison, condemned only by proof, and never for being late."""

from dataclasses import replace

import pytest

from rendezvous.membership.hang_events import (
    Cleared,
    Condemned,
    LookAt,
    Members,
    Parted,
    Stepped,
    Stuck,
    Suspected,
)
from rendezvous.membership.hang_limits import LEAST_S, UNSEEN_S
from rendezvous.membership.joint_stalls import MUTE_S, WITHIN
from rendezvous.membership.standstill import LOOKING_S, MARGIN_S, PATIENCE, TICK_S
from rendezvous.protocol.hang_messages import REPLACED
from rendezvous.protocol.progress_page import Phase
from tests.unit.still_ranks import FOUR, Job


def test_who_is_waited_for_and_proved_to_hang_is_condemned_at_its_limit() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(10.0)

    at, found = job.verdict()

    assert isinstance(found, Condemned) and found.rank == 2 and found.proof == "still"
    assert LEAST_S - 1.5 <= at <= LEAST_S + TICK_S
    assert (found.what, found.words) == ("operation 1", "at train.py:2 f")


def test_who_is_stopped_as_it_waits_is_condemned() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2, 3)
    job.state[2] = "T"
    job.run(LEAST_S + 1.0)

    at, found = job.verdict()

    assert isinstance(found, Condemned) and (found.rank, found.proof) == (2, "stopped")
    assert at <= LEAST_S + TICK_S


def test_nobody_is_blamed_for_the_time_in_which_the_launcher_stood_still_itself() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, 1, 3)
    job.state[2] = "T"
    job.run(1.0)
    job.now += 40.0
    job.run(1.0)

    assert not job.condemned
    job.run(LEAST_S)
    assert set(job.condemned) == {2}


def test_a_lag_in_which_the_launcher_stood_still_raises_no_limit() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(1.0)
    job.now += 40.0
    job.moves(2)
    job.run(1.0)
    job.stands(2, serial=11)
    job.run(2 * LEAST_S)

    assert set(job.condemned) == {2}


def test_who_goes_on_after_a_stop_waits_again() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2, 3)
    job.state[2] = "T"
    job.run(LEAST_S - 3.0)
    job.state[2] = "S"
    job.run(LEAST_S)

    _, found = job.verdict()

    assert isinstance(found, Stuck)


def test_who_still_waits_where_members_have_met_anew_is_condemned() -> None:
    """It keeps Python's lock, say: its operation ended, and it does not go on."""
    job = Job(*FOUR)
    job.waits(2)
    job.mute = {2}
    job.machine.step(Members(slots=job.slots, protected=True, generation=2), job.now)
    job.waits(0, 1, 3, generation=2, serial=11)
    job.run(LEAST_S + 2.0)

    assert set(job.condemned) == {2}


def test_who_waits_for_the_coordinators_word_waits_on_where_members_have_met_anew() -> None:
    job = Job(*FOUR)
    job.waits(2, number=0, channel=7)
    job.machine.step(Members(slots=job.slots, protected=True, generation=2), job.now)
    job.waits(0, 1, 3, number=0, channel=7, generation=2, serial=11)
    job.run(LEAST_S + 2.0)

    assert not job.condemned


def shards(job: Job) -> None:
    """Rank 1 has come to an operation of all, and its mate waits for it in torch's own."""
    job.within = {0}
    job.stands(0)
    job.waits(1, channel=9)
    job.waits(2, of=(0, 2), channel=6)
    job.waits(3, of=(1, 3), channel=7)


def test_shards_that_have_parted_are_named_and_none_is_lost() -> None:
    job = Job((0, 1), (2, 3))
    shards(job)
    job.run(LEAST_S + TICK_S)

    _, found = job.verdict()

    assert isinstance(found, Parted)
    assert found.places == (
        (0, WITHIN, "at train.py:0 f"), (1, "operation 1", "at train.py:1 f"),
        (2, "operation 1", "at train.py:2 f"), (3, "operation 1", "at train.py:3 f"),
    )  # fmt: skip


def test_a_replica_is_lost_within_which_one_waits_for_what_its_mate_has_completed() -> None:
    job = Job((0, 1), (2, 3))
    shards(job)
    job.joined = {1: ((7, 1), (9, 1))}  # also that in which rank 3 waits
    job.run(LEAST_S + 1.0)

    assert set(job.condemned) == {0} and not job.of(Parted)


def test_a_waiting_rank_that_shows_no_stack_does_not_save_a_replica() -> None:
    job = Job((0, 1), (2, 3))
    shards(job)
    job.mute = {3}
    job.run(LEAST_S + MUTE_S + 1.0)

    assert set(job.condemned) == {0} and not job.of(Parted)


def test_a_quiet_rank_that_nobody_waits_for_is_no_suspect() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, of=(0, 1))
    job.run(600.0)

    assert not job.found


def test_one_that_moves_again_is_forgotten() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(3.0)
    job.moves(2)
    job.run(600.0)

    assert not job.condemned and not job.of(Suspected)


def test_a_rank_that_came_late_raises_the_limit_for_the_next() -> None:
    job = Job(*FOUR)
    job.cpu_ms_per_s[2] = 1000.0
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(20.0)
    job.moves(2)
    job.cpu_ms_per_s[1] = 0.0
    job.stands(1, serial=12)
    begun = job.now
    job.run(100.0)

    (cleared,) = (found for _, found in job.of(Cleared))
    assert isinstance(cleared, Cleared) and 19.0 < cleared.lag_s < 22.0
    at, found = next((at, found) for at, found in job.found if isinstance(found, Condemned))
    assert isinstance(found, Condemned) and found.rank == 1
    assert at - begun > 3 * 19.0 - 2.0


def test_one_that_computes_is_named_at_its_limit_and_given_ten_times_as_long() -> None:
    job = Job(*FOUR)
    job.cpu_ms_per_s[2] = 1000.0
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(PATIENCE * LEAST_S + 5.0)

    (said,) = job.of(Suspected)
    at, found = job.verdict()

    assert said[0] < LEAST_S + 1.0
    assert isinstance(found, Condemned) and found.proof == "none"
    assert PATIENCE * LEAST_S - 1.5 <= at <= PATIENCE * LEAST_S + 1.0


@pytest.mark.parametrize("state, within_s", [("T", LEAST_S), (REPLACED, LEAST_S - LOOKING_S)])
def test_who_runs_no_code_of_the_script_is_condemned_before_the_limit_of_its_phase(
    state: str, within_s: float
) -> None:
    job = Job(*FOUR)
    job.state[2] = state
    job.stands(2, Phase.BETWEEN)
    job.waits(0, 1, 3)
    job.run(10.0)

    at, found = job.verdict()

    assert isinstance(found, Condemned) and found.proof == "stopped"
    assert at <= within_s + 2 * TICK_S


def test_what_happens_for_the_first_time_has_a_minute() -> None:
    job = Job(*FOUR)
    job.stands(2, Phase.BETWEEN)
    job.waits(0, 1, 3)
    job.run(UNSEEN_S - 5.0)
    before = job.condemned
    job.run(10.0)

    assert not before and 2 in job.condemned


@pytest.mark.parametrize("limit_s", [20.0, 30.0, 43.0])
def test_the_time_limit_of_the_script_comes_first(limit_s: float) -> None:
    job = Job(*FOUR)
    job.stands(2, Phase.BETWEEN)
    job.waits(0, 1, 3, limit_ms=int(1000 * limit_s))
    job.run(UNSEEN_S)

    at, found = job.verdict()

    assert isinstance(found, Condemned) and found.rank == 2
    ends = limit_s - 1.5  # it had waited before it was told of
    assert ends - MARGIN_S - TICK_S <= at < ends


def test_of_a_replica_the_one_is_lost_that_waits_for_nobody() -> None:
    job = Job((0, 1), (2, 3))
    job.within = {0}
    job.stands(0)
    job.stands(1)
    job.waits(2, 3)
    job.run(6.0)

    assert job.condemned[:1] == [1] and 0 not in job.condemned


def test_a_mate_that_waits_for_a_suspect_is_not_named() -> None:
    job = Job((0, 1), (2, 3))
    job.within = {0}
    job.cpu_ms_per_s[1] = 1000.0
    job.stands(0)
    job.stands(1)
    job.waits(2, 3)
    job.run(2 * LEAST_S)

    named = [found.rank for _, found in job.of(Suspected) if isinstance(found, Suspected)]
    assert named == [1]


def test_who_waits_for_a_mate_that_moves_is_not_condemned() -> None:
    job = Job((0, 1), (2, 3))
    job.within = {0}
    job.stands(0)
    job.waits(2, 3)
    job.run(20 * LEAST_S)

    assert not job.condemned


def test_where_all_of_a_replica_wait_within_it_one_of_them_is_condemned() -> None:
    job = Job((0, 1), (2, 3))
    job.within = {0, 1}
    job.stands(0)
    job.stands(1)
    job.waits(2, 3)
    job.run(LEAST_S)

    assert job.condemned[:1] == [0]


def test_two_that_hang_at_once_are_condemned_together() -> None:
    job = Job(*FOUR)
    job.stands(1)
    job.stands(3)
    job.waits(0, 2)
    job.run(LEAST_S)

    at = job.verdict()[0]
    together = [found for when, found in job.of(Condemned) if when == at]
    assert [found.rank for found in together if isinstance(found, Condemned)] == [1, 3]


def test_nobody_is_condemned_whose_launcher_does_not_answer() -> None:
    job = Job(*FOUR)
    job.silent = {2}
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(20 * LEAST_S)

    assert job.of(LookAt) and job.of(Suspected) and not job.condemned


def test_nobody_is_condemned_by_looks_from_before_its_launcher_fell_silent() -> None:
    job = Job(*FOUR)
    job.cpu_ms_per_s[2] = 1000.0
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(LEAST_S)
    job.silent = {2}
    job.run(20 * LEAST_S)

    assert not job.condemned


def test_looks_at_an_older_mark_are_not_believed() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, 1, 3)
    job.marks[2] = replace(job.marks[2], serial=8)
    job.run(20 * LEAST_S)

    assert job.of(LookAt) and not job.condemned


def test_a_look_shows_that_a_rank_has_moved_where_that_message_is_lost() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, 1, 3)
    job.marks[2] = replace(job.marks[2], serial=10)
    job.run(20 * LEAST_S)

    assert len(job.of(LookAt)) == 1, "it is not looked at again"
    assert not job.condemned and not job.of(Suspected)


def test_who_is_not_protected_is_only_named() -> None:
    job = Job(*FOUR, protected=False)
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(20 * LEAST_S)

    assert len(job.of(Suspected)) == 1 and not job.condemned


def test_a_rank_that_is_no_member_is_not_heard() -> None:
    job = Job(*FOUR)
    job.machine.step(Members(slots={0: 0, 1: 1, 3: 3}, protected=True), 0.0)
    job.stands(2)
    job.waits(0, 1)
    job.run(60.0)

    assert not job.found


def test_a_member_that_left_is_forgotten_and_its_place_taken_by_none() -> None:
    job = Job(*FOUR)
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(3.0)
    job.machine.step(Members(slots={0: 0, 1: 1, 3: 3}, protected=True), job.now)
    job.run(1.0)
    job.machine.check()

    assert 2 not in job.condemned


def test_slow_steps_make_it_wait_longer() -> None:
    job = Job(*FOUR)
    for step in range(6):
        job.machine.step(Stepped(step + 1), 10.0 * step)
    job.now = 50.0
    job.stands(2)
    job.waits(0, 1, 3)
    job.run(60.0)

    assert job.verdict()[0] >= 50.0 + 30.0 - 2.0


def test_it_asks_for_no_ticks_while_all_move() -> None:
    job = Job(*FOUR)
    idle = job.machine.deadline()
    job.stands(2)
    awake = job.machine.deadline()
    job.moves(2)

    assert idle is None and awake is not None and job.machine.deadline() is None
