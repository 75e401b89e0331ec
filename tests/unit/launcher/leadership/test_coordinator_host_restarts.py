"""The coordinator host: attempts, one count of restarts, nodes that go."""

import pytest

from recoverrun.launcher.leadership.first_failure import ACROSS_S
from recoverrun.launcher.network.frames import Envelope
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Beat, Refusal, Restart, Spare, Start
from rendezvous.protocol.messages import Exited, Leaving, Message, Stop
from rendezvous.protocol.register_messages import Ping
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.protocol.views import View
from tests.unit.hosted_job import Job, of

SIGNS = (Beat(node="far", incarnation="far"), Ping(number=1, sent_at=0.5, undecided=False))
"""Of life: members of a configuration ping, and others beat."""


def test_a_failure_within_the_budget_starts_everybody_again() -> None:
    job = Job()
    job.form()

    told = of(job.die(3, 0), Restart)
    starts = of(job.form(attempt=1), Start)

    assert told.keys() == {"own", "far"} == starts.keys()
    start = starts["own"]
    assert isinstance(start, Start)
    assert (start.attempt, start.restarts, start.master_addr) == (1, 1, "own:1")


def test_beyond_the_budget_the_job_ends_with_the_root_ranks_code_and_node() -> None:
    job = Job()
    job.form()
    job.die(3, 0)
    job.form(attempt=1)

    stops = of(job.die(3, 1), Stop)

    assert stops.keys() == {"own", "far"}
    stop = stops["own"]
    assert isinstance(stop, Stop)
    assert (stop.exit_code, stop.root_rank, stop.node) == (7, 3, "far")


def test_three_times_the_same_exception_is_93() -> None:
    job = Job(max_restarts=2)
    for attempt in range(3):
        job.form(attempt)
        envelopes = job.die(0, attempt, "ValueError: bad")

    stop = of(envelopes, Stop)["far"]
    assert isinstance(stop, Stop) and stop.exit_code == ExitCode.DO_NOT_REQUEUE
    assert "3 of 3 tries" in stop.reason


def test_words_of_an_attempt_that_is_over_change_nothing() -> None:
    job = Job(max_restarts=5)
    job.form()
    job.die(3, 0)
    assert job.die(2, 0) == []
    job.form(attempt=1, now=3.0)

    assert job.die(1, 0, now=3.1) == []
    assert job.coordinator_host.stopped is None


def test_nothing_that_was_stored_is_read_in_the_next_attempt() -> None:
    job = Job()
    job.form()

    def call(op: str, *values: bytes) -> list[Envelope]:
        message = StoreCall(
            rank=0, serial=len(job.records), generation=0, op=op,  # type: ignore[arg-type]
            keys=("k",), values=values, amount=0, timeout_s=5.0,
        )  # fmt: skip
        return job.coordinator_host.receive("own", message, 0.1)

    call("set", b"dead address")
    job.die(3, 0)
    job.form(attempt=1)
    answers = of(call("check"), StoreAnswer)

    answer = answers["own"]
    assert isinstance(answer, StoreAnswer) and answer.number == 0


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: type(sign).__name__)
def test_who_missed_the_restart_is_told_again(sign: Message) -> None:
    job = Job()
    job.form()
    job.die(0, 0)

    beat = of(job.coordinator_host.receive("far", sign, 0.5), Restart)
    stale = of(job.join("far", attempt=0), Restart)

    assert beat.keys() == stale.keys() == {"far"}


def test_members_ask_for_themselves_and_only_who_waits_is_told_that_we_live() -> None:
    job = Job()
    beat = Beat(node="own", incarnation="own", term=1)
    job.form()
    assert job.coordinator_host.beat(beat, members=False) == []

    job.join("late")

    assert [envelope.to for envelope in job.coordinator_host.beat(beat, members=False)] == ["late"]
    assert [envelope.to for envelope in job.coordinator_host.beat(beat, members=True)] == [
        "far",
        "late",
    ]


def test_a_lost_node_of_a_range_begins_an_attempt_that_does_not_count() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()
    job.join("own")
    job.coordinator_host.tick(0.5)

    envelopes = job.coordinator_host.depart([("far", "its launcher has ended")], 4.0)
    assert of(envelopes, Restart).keys() == {"own"}
    job.join("own", attempt=1, now=4.5)
    start = of(job.coordinator_host.tick(4.5), Start)["own"]

    assert isinstance(start, Start)
    assert (start.nnodes, start.attempt, start.restarts) == (1, 1, 0)


def test_a_late_node_is_taken_in_and_one_too_many_waits() -> None:
    job = Job(max_restarts=0, least=1)
    job.join("own")
    job.coordinator_host.tick(31.0)

    assert of(job.join("far", now=32.0), Restart).keys() == {"own", "far"}
    starts = of(job.join("own", attempt=1, now=32.5), Start)
    assert starts.keys() == {"own", "far"}
    assert of(job.join("third", now=33.0), Spare).keys() == {"third"}


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_stop_between_attempts_reaches_those_who_join_again(attempt: int) -> None:
    job = Job()
    job.form()
    job.die(0, 0)

    job.coordinator_host.stop(Stop(exit_code=ExitCode.TERMINATED, reason="the user", root_rank=-1))

    refusal = of(job.join("far", attempt), Refusal)["far"]
    assert isinstance(refusal, Refusal) and refusal.exit_code == ExitCode.TERMINATED


def test_a_victim_that_is_heard_first_is_not_the_cause() -> None:
    job = Job()
    job.form()
    victim, root = (
        Exited(rank=rank, incarnation=0, node="n", code=1, ours=False, error=error, detected_s=0.0)
        for rank, error in ((0, "RuntimeError: Connection closed by peer"), (3, "ValueError: bad"))
    )

    assert of(job.coordinator_host.receive("own", victim, 0.1), Restart) == {}
    job.coordinator_host.receive("far", root, 0.8)
    restart = of(job.coordinator_host.tick(0.8 + ACROSS_S), Restart)["own"]

    assert isinstance(restart, Restart) and restart.root_rank == 3


def test_a_node_that_falls_silent_after_its_victims_spoke_is_the_cause() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()
    job.coordinator_host.tick(0.5)
    job.die(0, 0, "RuntimeError: Connection closed by peer", now=0.6)

    envelopes = job.coordinator_host.depart([("far", "its launcher was silent for too long")], 3.0)

    assert of(envelopes, Restart).keys() == {"own"}
    assert "node.lost" in [record.event for record in job.records]
    start = of([*job.join("own", attempt=1, now=4.5), *job.coordinator_host.tick(4.5)], Start)[
        "own"
    ]
    assert isinstance(start, Start) and start.restarts == 0


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_node_that_too_few_outlive_uses_up_a_restart(restarts: int) -> None:
    job = Job(max_restarts=restarts, least=2)
    job.form()

    envelopes = job.coordinator_host.depart([("far", "its launcher has ended")], 3.0)

    again = of(envelopes, Restart)
    assert again.keys() == ({"own"} if restarts else set())
    if not restarts:
        stop = of(envelopes, Stop)["own"]
        assert isinstance(stop, Stop) and stop.exit_code == 137
        assert stop.reason.endswith("its launcher has ended; 1 of at least 2 nodes are left")


def _lost(job: Job) -> list[str]:
    return [record.reason for record in job.records if record.event == "node.lost"]


def test_a_node_that_is_lost_while_all_begin_again_is_recorded_once() -> None:
    job = Job(max_restarts=3, least=1)
    job.form()
    job.die(3, 0)

    for now in (0.3, 0.4):
        job.coordinator_host.depart([("far", "its launcher has ended")], now)

    assert _lost(job) == ["far: its launcher has ended"]


def test_a_node_that_left_as_planned_is_not_lost_while_all_begin_again() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()
    _leave(job, 0.2)

    job.coordinator_host.depart([("far", "SIGTERM was sent")], 0.3)

    assert _lost(job) == []


def _leave(job: Job, now: float) -> list[Envelope]:
    leave = Leaving(node="far", exit_code=ExitCode.TERMINATED, reason="SIGTERM was sent")
    return job.coordinator_host.receive("far", leave, now)


def test_a_node_that_its_user_stops_leaves_the_rest_of_a_range_to_go_on() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()

    assert of(_leave(job, 0.2), Restart).keys() == {"own"}
    envelopes = job.join("own", attempt=1, now=0.3)
    assert isinstance(start := of(envelopes + job.coordinator_host.tick(0.3), Start)["own"], Start)
    assert (start.nnodes, start.restarts) == (1, 0)
    # Its silence is no news, and what it still says of its end is not answered.
    assert job.coordinator_host.tick(9.0) == []
    stop = Stop(exit_code=ExitCode.TERMINATED, reason="", root_rank=-1)
    assert job.coordinator_host.receive("far", stop, 9.1) == []
    assert of(job.coordinator_host.receive("far", Beat(node="far", incarnation="far"), 9.2), Stop)


def test_where_the_rest_cannot_go_on_the_job_ends_with_the_node() -> None:
    job = Job(max_restarts=3, least=2)
    job.form()

    stops = of(_leave(job, 0.2), Stop)

    assert stops.keys() == {"own", "far"}
    assert (
        job.coordinator_host.stopped is not None
        and job.coordinator_host.stopped.exit_code == ExitCode.TERMINATED
    )


def test_replicas_that_are_left_go_on_without_an_attempt() -> None:
    job = Job(max_restarts=0, least=2)
    job.form()
    job.learn()
    job.promise(0, 1, 2, 3)

    envelopes = _leave(job, 0.2)

    views = [envelope.message for envelope in envelopes if isinstance(envelope.message, View)]
    assert {view.live for view in views} == {(0, 1)}
    assert of(envelopes, Restart) == {} == of(envelopes, Stop)
