"""Workers are stopped in order, within bounds, and every signal of ours is on the books."""

import signal

from recoverrun.launcher.node.supervisor import (
    GRACE_S,
    LAST_WORDS_S,
    REAP_S,
    Again,
    Begin,
    Completed,
    Ended,
    Gone,
    Hurry,
    KillOrder,
    Leave,
    Signal,
    StopOrder,
    Supervisor,
    Tick,
    Unbegun,
    Unborn,
)
from rendezvous.protocol.exit_codes import ExitCode

STOP = StopOrder(7, "rank 9 failed")


def test_an_end_is_told_at_once_and_is_not_ours() -> None:
    supervisor = Supervisor((0, 1))

    assert supervisor.step(Ended(0, -9, True), 1.0) == [Gone(0, -9, False)]
    assert supervisor.step(Ended(0, -9, True), 1.0) == []


def test_a_good_end_waits_for_the_last_words() -> None:
    supervisor = Supervisor((0, 1))

    assert supervisor.step(Ended(0, 0, False), 1.0) == []
    assert supervisor.step(Completed(0), 1.1) == [Gone(0, 0, False)]
    assert supervisor.step(Ended(1, 0, False), 2.0) == []
    assert supervisor.deadline() == 2.0 + LAST_WORDS_S
    assert supervisor.step(Tick(), 2.0 + LAST_WORDS_S) == [Gone(1, 0, False)]


def test_a_lost_replica_is_killed_without_grace() -> None:
    supervisor = Supervisor((4, 5, 6))

    effects = supervisor.step(KillOrder((5, 6, 7), "replica 2 left"), 1.0)

    assert effects == [Signal((5, 6), signal.SIGKILL, "replica 2 left")]
    assert supervisor.step(Ended(5, -9, True), 1.1) == [Gone(5, -9, True)]
    assert supervisor.step(Ended(4, 1, True), 1.2) == [Gone(4, 1, False)]


def test_the_ladder_goes_from_term_to_kill_to_leaving() -> None:
    supervisor = Supervisor((0, 1, 2))

    assert supervisor.step(STOP, 0.0) == [Signal((0, 1, 2), signal.SIGTERM, STOP.reason)]
    assert supervisor.step(Ended(0, -15, True), 0.1) == [Gone(0, -15, True)]
    assert supervisor.deadline() == GRACE_S
    (kill,) = supervisor.step(Tick(), GRACE_S)
    assert isinstance(kill, Signal) and (kill.ranks, kill.number) == ((1, 2), signal.SIGKILL)
    assert supervisor.step(Ended(1, -9, True), GRACE_S + 0.1) == [Gone(1, -9, True)]
    assert supervisor.deadline() == GRACE_S + REAP_S
    assert supervisor.step(Tick(), GRACE_S + REAP_S) == [Leave(7, (2,))]
    assert supervisor.deadline() is None


def test_each_rank_that_sigkill_did_not_end_is_told_of_by_its_number() -> None:
    notices = Leave(7, (2, 5)).notices()

    assert [notice.fields["rank"] for notice in notices] == [2, 5]
    assert {notice.event for notice in notices} == {"notice.give"}
    assert all(notice.reason.startswith("did not end by SIGKILL") for notice in notices)


def test_the_launcher_leaves_when_the_last_worker_has() -> None:
    supervisor = Supervisor((0,))
    supervisor.step(STOP, 0.0)

    assert supervisor.step(Ended(0, -15, True), 0.1) == [Gone(0, -15, True), Leave(7, ())]
    assert supervisor.step(Tick(), 99.0) == []


def test_workers_that_ended_before_are_no_reason_to_stay() -> None:
    supervisor = Supervisor((0,))
    supervisor.step(Ended(0, 0, True), 0.0)

    assert supervisor.step(StopOrder(0, "done"), 0.1) == [Leave(0, ())]


def test_nobody_leaves_before_being_told_to() -> None:
    supervisor = Supervisor((0,))

    assert supervisor.step(Ended(0, 0, True), 0.0) == [Gone(0, 0, False)]
    assert supervisor.step(Tick(), 1000.0) == []


def test_asked_twice_the_grace_is_over() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(STOP, 0.0)

    (kill,) = supervisor.step(Hurry(), 0.2)

    assert isinstance(kill, Signal) and (kill.ranks, kill.number) == ((0, 1), signal.SIGKILL)
    assert supervisor.deadline() == 0.2 + REAP_S


def test_only_the_first_reason_to_stop_counts() -> None:
    supervisor = Supervisor((0,))
    supervisor.step(STOP, 0.0)

    assert supervisor.step(StopOrder(ExitCode.PARTITIONED, "later"), 0.1) == []
    assert supervisor.step(Ended(0, -15, True), 0.2)[-1] == Leave(7, ())


def test_a_node_without_workers_leaves_when_told_to() -> None:
    assert Supervisor(()).step(STOP, 0.0) == [Leave(7, ())]


AGAIN = Again((0, 1, 7), 1, "it was lost")


def test_a_rank_runs_again_only_where_it_has_ended() -> None:
    supervisor = Supervisor((0, 1))
    assert supervisor.step(AGAIN, 0.0) == []
    supervisor.step(Ended(1, -9, True), 1.0)

    assert supervisor.step(AGAIN, 1.1) == [Begin(1, 1, "it was lost")]
    assert supervisor.step(AGAIN, 1.2) == [], "once: it runs now"
    assert supervisor.step(KillOrder((1,), "it left"), 2.0) == [
        Signal((1,), signal.SIGKILL, "it left")
    ]
    assert supervisor.step(Ended(1, -9, True), 2.1) == [Gone(1, -9, True)]


def test_a_signal_to_the_former_process_makes_no_end_of_the_new_one_ours() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(KillOrder((1,), "it left"), 0.5)
    supervisor.step(Ended(1, -9, True), 1.0)
    supervisor.step(AGAIN, 1.1)

    assert supervisor.step(Ended(1, -11, True), 2.0) == [Gone(1, -11, False)]


def test_what_is_late_is_told_before_the_rank_begins_again() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(Ended(1, 0, False), 1.0)

    assert supervisor.step(AGAIN, 1.1) == [Gone(1, 0, False), Begin(1, 1, "it was lost")]
    assert supervisor.deadline() is None
    assert supervisor.step(Tick(), 9.0) == []
    assert supervisor.step(Completed(1), 9.1) == [], "of the new one, which runs"


def test_no_rank_begins_again_once_the_job_is_being_stopped() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(Ended(1, -9, True), 1.0)
    supervisor.step(STOP, 2.0)

    assert supervisor.step(AGAIN, 2.1) == []
    assert supervisor.step(Ended(0, -15, True), 2.2) == [Gone(0, -15, True), Leave(7, ())]


def test_the_new_process_is_stopped_like_any_other() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(Ended(1, -9, True), 1.0)
    supervisor.step(AGAIN, 1.1)

    assert supervisor.step(STOP, 2.0) == [Signal((0, 1), signal.SIGTERM, STOP.reason)]


def test_nobody_waits_for_a_process_that_could_not_be_started() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(Ended(1, -9, True), 1.0)
    supervisor.step(AGAIN, 1.1)

    assert supervisor.step(Unborn(1), 1.2) == []
    assert supervisor.step(STOP, 2.0) == [Signal((0,), signal.SIGTERM, STOP.reason)]
    assert supervisor.step(Ended(0, -15, True), 2.1)[-1] == Leave(7, ())


def test_each_birth_begins_once_however_often_it_is_ordered() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(Ended(1, -9, True), 1.0)
    supervisor.step(AGAIN, 1.1)
    supervisor.step(Ended(1, -9, True), 1.2)

    assert supervisor.step(AGAIN, 1.3) == []
    assert supervisor.step(Again((1,), 2, "again"), 1.4) == [Begin(1, 2, "again")]


def test_an_order_to_end_names_the_process_that_it_means() -> None:
    supervisor = Supervisor((0, 1))
    supervisor.step(Ended(1, -9, True), 1.0)
    supervisor.step(AGAIN, 1.1)

    assert supervisor.step(KillOrder((0, 1, 7), "it left", (1, 0, 0)), 1.2) == []
    assert supervisor.step(KillOrder((1,), "it left", (1,)), 1.3) == [
        Signal((1,), signal.SIGKILL, "it left")
    ]
    supervisor.step(Ended(1, -9, True), 1.4)
    assert supervisor.step(KillOrder((1,), "it left", (2,)), 1.5) == [Unbegun(1, 2)]
    assert supervisor.step(Again((1,), 2, "again"), 1.6) == []


def test_ranks_that_another_node_had_begin_as_they_are_told_to() -> None:
    supervisor = Supervisor((0, 1), begun=False)

    assert supervisor.step(KillOrder((0,), "it left", (3,)), 1.0) == [Unbegun(0, 3)]
    assert supervisor.step(Again((0, 1), 3, "again"), 1.1) == [Begin(1, 3, "again")]
    assert supervisor.step(Again((0,), 4, "again"), 1.2) == [Begin(0, 4, "again")]
    supervisor.step(Ended(0, -9, True), 1.3)
    supervisor.step(Ended(1, -9, True), 1.3)
    assert supervisor.step(STOP, 2.0) == [Leave(7, ())]
