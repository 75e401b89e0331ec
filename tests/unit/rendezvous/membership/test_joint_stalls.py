"""All ranks stand still together: stuck, parted, or quiet."""

import pytest

from rendezvous.membership.hang_events import AllQuiet, LookAt, Members, Parted, Stepped, Stuck
from rendezvous.membership.hang_limits import LEAST_S, TIMES, UNSEEN_S
from rendezvous.membership.joint_stalls import QUIET_TIMES, START_S
from rendezvous.protocol.progress_page import Phase
from tests.unit.still_ranks import FOUR, Job


def stuck_of(job: Job) -> list[tuple[float, bool]]:
    return [(at, found.meet) for at, found in job.of(Stuck) if isinstance(found, Stuck)]


def test_an_operation_that_all_have_joined_is_stuck_and_members_meet_anew() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2, 3)
    job.run(LEAST_S + 2.0)

    ((at, meet),) = stuck_of(job)

    assert meet and LEAST_S - 1.5 <= at <= LEAST_S + 1.0
    assert not job.condemned


def test_with_each_meeting_it_is_given_longer_and_the_job_stops_after_a_minute() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2, 3)
    job.run(3 * UNSEEN_S)

    first, second, third = stuck_of(job)[:3]

    assert (first[1], second[1], third[1]) == (True, True, False)
    assert second[0] - first[0] >= TIMES * LEAST_S
    assert third[0] - second[0] >= UNSEEN_S


def test_a_step_that_is_over_begins_the_count_anew() -> None:
    job = Job(*FOUR)
    for step in range(4):
        job.waits(0, 1, 2, 3, serial=9 + step)
        job.run(LEAST_S + 1.0)
        job.machine.step(Stepped(2 * step + 1), job.now)  # of which no usual time is known

    assert [meet for _, meet in stuck_of(job)] == [True] * 4


def test_an_operation_that_ended_after_all_was_slow_and_the_next_may_take_longer() -> None:
    job = Job(*FOUR)
    for step in range(6):
        job.machine.step(Stepped(step + 1), 10.0 * step)  # steps of 10 s: the limit is 30 s
    job.now = 50.0
    job.waits(0, 1, 2, 3)
    job.run(25.0)
    for rank in range(4):
        job.moves(rank)
    job.waits(0, 1, 2, 3, serial=11)
    begun = job.now
    job.run(100.0)

    ((at, _),) = stuck_of(job)

    assert at - begun >= TIMES * 25.0 - 2.0


def test_ranks_in_different_operations_have_parted() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2)
    job.waits(3, number=2, channel=6)
    job.run(LEAST_S + 3.0)

    (found,) = (found for _, found in job.of(Parted))

    assert isinstance(found, Parted)
    assert [(rank, what) for rank, what, _ in found.places] == [
        (0, "operation 1"), (1, "operation 1"), (2, "operation 1"), (3, "operation 2"),
    ]  # fmt: skip
    assert found.places[3][2] == "at train.py:3 f"


def test_that_they_have_parted_is_said_once() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2)
    job.waits(3, number=2, channel=6)
    job.run(20 * LEAST_S)

    assert len(job.of(Parted)) == 1


def test_groups_that_wait_apart_have_not_parted() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, of=(0, 1))
    job.waits(2, 3, number=2, of=(2, 3))
    job.run(LEAST_S + 1.0)

    assert not job.of(Parted) and job.of(Stuck)


def test_who_waits_elsewhere_for_those_in_a_slow_operation_has_not_parted_from_them() -> None:
    job = Job((0, 1), (2, 3))
    job.waits(0, 2, of=(0, 2))  # a reduction of one shard, that takes long
    job.waits(1, 3, number=2, channel=6)  # the vote that follows, of all
    job.run(LEAST_S + 1.0)

    ((_, found),) = job.of(Stuck)

    assert not job.of(Parted)
    assert isinstance(found, Stuck) and found.what == "operation 1"


def test_what_one_has_completed_and_another_waits_for_is_stuck() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2, number=7, channel=6)  # the vote that follows
    job.waits(3, number=4)
    job.joined = dict.fromkeys(range(3), ((5, 4), (6, 7))) | {3: ((5, 4), (6, 6))}
    job.run(LEAST_S + 1.0)

    ((_, found),) = job.of(Stuck)

    assert not job.of(Parted)
    assert isinstance(found, Stuck) and found.what == "operation 4" and found.meet


def test_of_one_that_shows_no_stack_nobody_knows_what_it_has_joined() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2, channel=6)
    job.waits(3)
    job.mute = {2}
    job.run(3 * LEAST_S)

    assert not job.of(Parted) and stuck_of(job)


def test_one_that_moves_parts_nobody() -> None:
    job = Job(*FOUR)
    job.waits(0, 1)
    job.waits(3, number=2, channel=6)
    job.run(10 * LEAST_S)

    assert not job.of(Parted) and not job.of(Stuck)


def test_of_ranks_whose_launcher_is_silent_nothing_is_found() -> None:
    for others in (1, 2):
        job = Job(*FOUR)
        job.silent = {3}
        job.waits(0, 1, 2)
        job.waits(3, number=others, channel=4 + others)
        job.run(10 * LEAST_S)

        assert job.of(LookAt) and not job.of(Parted) and not job.of(Stuck)


def test_members_that_change_are_given_time_to_join_again() -> None:
    job = Job(*FOUR)
    job.waits(0, 1, 2, 3)
    job.run(LEAST_S - 3.0)
    job.machine.step(Members(slots={0: 0, 1: 1, 2: 2}, protected=True), job.now)
    begun = job.now
    job.run(2 * LEAST_S)

    assert stuck_of(job)[0][0] - begun >= LEAST_S


def test_that_all_are_quiet_is_said_once_after_a_minute_and_ends_nothing() -> None:
    job = Job(*FOUR)
    for rank in range(4):
        job.stands(rank, Phase.BETWEEN)
    job.run(10 * UNSEEN_S)

    ((at, found),) = job.of(AllQuiet)

    assert UNSEEN_S - 1.5 <= at <= UNSEEN_S + 2.0
    assert isinstance(found, AllQuiet) and not found.over and found.phase is Phase.BETWEEN


@pytest.mark.parametrize(
    ("state", "cpu_ms_per_s", "said_after_s"),
    [("S", 900.0, START_S), ("D", 0.0, START_S), ("S", 0.0, UNSEEN_S)],
)
def test_of_ranks_that_are_at_work_before_their_scripts_have_begun_nothing_is_said_for_minutes(
    state: str, cpu_ms_per_s: float, said_after_s: float
) -> None:
    job = Job(*FOUR)
    for rank in range(4):
        job.stands(rank, Phase.FIRST, serial=1)
    job.state[2], job.cpu_ms_per_s[2] = state, cpu_ms_per_s
    job.run(2 * START_S)

    ((at, found),) = job.of(AllQuiet)

    assert said_after_s - 1.5 <= at <= said_after_s + 2.0
    assert isinstance(found, AllQuiet) and not found.started


def test_quiet_as_long_as_before_is_not_worth_a_word() -> None:
    job = Job(*FOUR)
    for rank in range(4):
        job.stands(rank, Phase.BETWEEN)
    job.run(50.0)
    for rank in range(4):
        job.moves(rank)
    for rank in range(4):
        job.stands(rank, Phase.BETWEEN, serial=11)
    begun = job.now
    job.run(400.0)

    ((at, _),) = job.of(AllQuiet)

    assert at - begun >= QUIET_TIMES * 48.0


def test_a_long_time_in_which_all_moved_is_not_quiet() -> None:
    job = Job(*FOUR)
    for rank in range(4):
        job.stands(rank, Phase.BETWEEN)
    job.run(10.0)
    for rank in range(4):
        job.moves(rank)
    job.now += 10_000.0  # nobody stands still: the machine is not asked
    job.stands(0, serial=11)
    job.run(2.0)
    for rank in range(1, 4):
        job.stands(rank, Phase.BETWEEN, serial=11)
    job.run(2 * UNSEEN_S)

    assert len(job.of(AllQuiet)) == 1


def test_the_users_limit_ends_what_is_quiet_and_no_other_wait() -> None:
    job = Job(*FOUR, hang_limit_s=20.0)
    for rank in range(4):
        job.stands(rank, Phase.BETWEEN)
    job.run(25.0)

    (at, found), *_ = job.of(AllQuiet)

    assert isinstance(found, AllQuiet) and found.over and 18.5 <= at <= 21.0


def test_one_that_moves_breaks_the_quiet() -> None:
    job = Job(*FOUR, hang_limit_s=20.0)
    for rank in range(3):
        job.stands(rank, Phase.BETWEEN)
    job.run(100.0)

    assert not job.found
