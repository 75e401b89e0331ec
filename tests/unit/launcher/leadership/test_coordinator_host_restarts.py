"""The coordinator host: attempts, one count of restarts, nodes that come and go."""

import pytest

from recoverrun.launcher.leadership.attempts import EARLY_RESTARTS
from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from recoverrun.launcher.leadership.first_failure import ACROSS_S
from recoverrun.launcher.network.frames import Envelope
from rendezvous.membership.beginning import DEATH_WAIT_S
from rendezvous.membership.formation import Formation
from rendezvous.protocol.effects import Record
from rendezvous.protocol.messages import (
    Beat,
    Exited,
    Farewell,
    Join,
    Leaving,
    Message,
    PeerFault,
    Refusal,
    Restart,
    Spare,
    Start,
    Stop,
    StoreAnswer,
    StoreCall,
    Topology,
    View,
)
from rendezvous.protocol.register_messages import Ping
from tests.unit.coordination import verdict
from tests.unit.stores import lone_store

SIGNS = (Beat(node="far", incarnation="far"), Ping(number=1, sent_at=0.5, fenced=False))
"""Of life: members of a configuration ping, and others beat."""


class Job:
    """Launchers "own" (with the coordinator host) and "far" of two ranks each; "late" may come."""

    def __init__(self, *, max_restarts: int = 1, least: int = 2) -> None:
        self.records: list[Record] = []
        formation = Formation(
            nnodes=2, run_id="job", version="1", master_addr="", timeout_s=600.0, begun_at=0.0,
            nnodes_least=least, last_call_s=30.0,
        )  # fmt: skip
        self.coordinator_host = CoordinatorHost(
            formation=formation, own="own", min_replicas=1, record=self.records.append,
            max_restarts=max_restarts, store=lone_store(),
        )  # fmt: skip

    def join(self, name: str, attempt: int = 0, now: float = 0.0) -> list[Envelope]:
        join = Join(
            run_id="job", node=name, incarnation=name, node_rank=-1, nproc=2, version="1",
            master=f"{name}:{attempt}", attempt=attempt,
        )  # fmt: skip
        return self.coordinator_host.receive(name, join, now)

    def form(self, attempt: int = 0, now: float = 0.0) -> list[Envelope]:
        return [*self.join("own", attempt, now), *self.join("far", attempt, now)]

    def say(self, rank: int, message: Message, now: float = 0.1) -> list[Envelope]:
        return self.coordinator_host.receive("own" if rank < 2 else "far", message, now)

    def learn(self) -> None:
        replicas = ((0,), (1,), (2,), (3,))
        self.say(0, Topology(rank=0, generation=1, strategy="ddp", replicas=replicas))

    def promise(self, *ranks: int) -> None:
        for rank in ranks:
            self.say(rank, verdict(rank))

    def die(
        self, rank: int, attempt: int, error: str = "", now: float = 0.1, code: int = 7
    ) -> list[Envelope]:
        exited = Exited(
            rank=rank, incarnation=attempt, node="n", code=code, ours=False, error=error,
            detected_s=0.0,
        )  # fmt: skip
        told = self.say(rank, exited, now)
        return [*told, *self.coordinator_host.tick(now + ACROSS_S)]


def _of(envelopes: list[Envelope], kind: type[Message]) -> dict[str, Message]:
    return {
        envelope.to: envelope.message
        for envelope in envelopes
        if isinstance(envelope.message, kind)
    }


def test_a_failure_within_the_budget_starts_everybody_again() -> None:
    job = Job()
    job.form()

    told = _of(job.die(3, 0), Restart)
    starts = _of(job.form(attempt=1), Start)

    assert told.keys() == {"own", "far"} == starts.keys()
    start = starts["own"]
    assert isinstance(start, Start)
    assert (start.attempt, start.restarts, start.master_addr) == (1, 1, "own:1")


def test_beyond_the_budget_the_job_ends_with_the_root_ranks_code_and_node() -> None:
    job = Job()
    job.form()
    job.die(3, 0)
    job.form(attempt=1)

    stops = _of(job.die(3, 1), Stop)

    assert stops.keys() == {"own", "far"}
    stop = stops["own"]
    assert isinstance(stop, Stop)
    assert (stop.exit_code, stop.root_rank, stop.node) == (7, 3, "far")


def test_three_times_the_same_exception_is_93() -> None:
    job = Job(max_restarts=2)
    for attempt in range(3):
        job.form(attempt)
        envelopes = job.die(0, attempt, "ValueError: bad")

    stop = _of(envelopes, Stop)["far"]
    assert isinstance(stop, Stop) and stop.exit_code == 93
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
    answers = _of(call("check"), StoreAnswer)

    answer = answers["own"]
    assert isinstance(answer, StoreAnswer) and answer.number == 0


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: type(sign).__name__)
def test_who_missed_the_restart_is_told_again(sign: Message) -> None:
    job = Job()
    job.form()
    job.die(0, 0)

    beat = _of(job.coordinator_host.receive("far", sign, 0.5), Restart)
    stale = _of(job.join("far", attempt=0), Restart)

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
    assert _of(envelopes, Restart).keys() == {"own"}
    job.join("own", attempt=1, now=4.5)
    start = _of(job.coordinator_host.tick(4.5), Start)["own"]

    assert isinstance(start, Start)
    assert (start.nnodes, start.attempt, start.restarts) == (1, 1, 0)


def test_a_late_node_is_taken_in_and_one_too_many_waits() -> None:
    job = Job(max_restarts=0, least=1)
    job.join("own")
    job.coordinator_host.tick(31.0)

    assert _of(job.join("far", now=32.0), Restart).keys() == {"own", "far"}
    starts = _of(job.join("own", attempt=1, now=32.5), Start)
    assert starts.keys() == {"own", "far"}
    assert _of(job.join("third", now=33.0), Spare).keys() == {"third"}


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_stop_between_attempts_reaches_those_who_join_again(attempt: int) -> None:
    job = Job()
    job.form()
    job.die(0, 0)

    job.coordinator_host.stop(Stop(exit_code=143, reason="the user", root_rank=-1))

    refusal = _of(job.join("far", attempt), Refusal)["far"]
    assert isinstance(refusal, Refusal) and refusal.exit_code == 143


def test_a_victim_that_is_heard_first_is_not_the_cause() -> None:
    job = Job()
    job.form()
    victim, root = (
        Exited(rank=rank, incarnation=0, node="n", code=1, ours=False, error=error, detected_s=0.0)
        for rank, error in ((0, "RuntimeError: Connection closed by peer"), (3, "ValueError: bad"))
    )

    assert _of(job.coordinator_host.receive("own", victim, 0.1), Restart) == {}
    job.coordinator_host.receive("far", root, 0.8)
    restart = _of(job.coordinator_host.tick(0.8 + ACROSS_S), Restart)["own"]

    assert isinstance(restart, Restart) and restart.root_rank == 3


def test_a_node_that_falls_silent_after_its_victims_spoke_is_the_cause() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()
    job.coordinator_host.tick(0.5)
    job.die(0, 0, "RuntimeError: Connection closed by peer", now=0.6)

    envelopes = job.coordinator_host.depart([("far", "its launcher was silent for too long")], 3.0)

    assert _of(envelopes, Restart).keys() == {"own"}
    assert "node.lost" in [record.event for record in job.records]
    start = _of([*job.join("own", attempt=1, now=4.5), *job.coordinator_host.tick(4.5)], Start)[
        "own"
    ]
    assert isinstance(start, Start) and start.restarts == 0


def _leave(job: Job, now: float) -> list[Envelope]:
    leave = Leaving(node="far", exit_code=143, reason="SIGTERM was sent")
    return job.coordinator_host.receive("far", leave, now)


def test_a_node_that_its_user_stops_leaves_the_rest_of_a_range_to_go_on() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()

    assert _of(_leave(job, 0.2), Restart).keys() == {"own"}
    envelopes = job.join("own", attempt=1, now=0.3)
    assert isinstance(start := _of(envelopes + job.coordinator_host.tick(0.3), Start)["own"], Start)
    assert (start.nnodes, start.restarts) == (1, 0)
    # Its silence is no news, and what it still says of its end is not answered.
    assert job.coordinator_host.tick(9.0) == []
    stop = Stop(exit_code=143, reason="", root_rank=-1)
    assert job.coordinator_host.receive("far", stop, 9.1) == []
    assert _of(job.coordinator_host.receive("far", Beat(node="far", incarnation="far"), 9.2), Stop)


def test_where_the_rest_cannot_go_on_the_job_ends_with_the_node() -> None:
    job = Job(max_restarts=3, least=2)
    job.form()

    stops = _of(_leave(job, 0.2), Stop)

    assert stops.keys() == {"own", "far"}
    assert (
        job.coordinator_host.stopped is not None and job.coordinator_host.stopped.exit_code == 143
    )


def test_replicas_that_are_left_go_on_without_an_attempt() -> None:
    job = Job(max_restarts=0, least=2)
    job.form()
    job.learn()
    job.promise(0, 1, 2, 3)

    envelopes = _leave(job, 0.2)

    views = [envelope.message for envelope in envelopes if isinstance(envelope.message, View)]
    assert {view.live for view in views} == {(0, 1)}
    assert _of(envelopes, Restart) == {} == _of(envelopes, Stop)


# ------------------------------------------------------------------------------------- starting


def _starts(envelopes: list[Envelope]) -> Start:
    start = _of(envelopes, Start)["own"]
    assert isinstance(start, Start)
    return start


def test_a_rank_that_is_killed_before_all_can_serve_costs_no_restart() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    job.promise(0, 1, 2)

    told = _of(job.die(1, 0, code=-9), Restart)

    assert told.keys() == {"own", "far"}
    restart = told["own"]
    assert isinstance(restart, Restart) and restart.root_rank == 1
    assert "before the first step was over: all ranks are started again" in restart.reason
    start = _starts(job.form(attempt=1))
    assert (start.attempt, start.restarts) == (1, 0)


def test_an_error_of_the_script_before_all_can_serve_ends_the_job() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()

    stop = _of(job.die(1, 0, "ValueError: bad"), Stop)["own"]

    assert isinstance(stop, Stop) and (stop.exit_code, stop.root_rank) == (7, 1)


def test_a_victim_that_is_killed_by_an_error_elsewhere_is_no_early_loss() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    victim, root = (
        Exited(rank=rank, incarnation=0, node="n", code=code, ours=False, error=error,
               detected_s=0.0, age_s=age_s)
        for rank, code, error, age_s in ((0, -6, "", 0.0), (3, 7, "ValueError: bad", 0.9))
    )  # fmt: skip

    assert job.say(0, victim, 0.5) == []
    job.say(3, root, 0.6)
    stop = _of(job.coordinator_host.tick(0.6 + ACROSS_S), Stop)["own"]

    assert isinstance(stop, Stop) and (stop.exit_code, stop.root_rank) == (7, 3)


def test_a_job_is_started_again_three_times_and_no_more_before_it_can_serve() -> None:
    job = Job(max_restarts=0)
    for attempt in range(EARLY_RESTARTS):
        job.form(attempt)
        job.learn()
        assert _of(job.die(1, attempt, code=-9), Restart)
    job.form(EARLY_RESTARTS)
    job.learn()

    stop = _of(job.die(1, EARLY_RESTARTS, code=-9), Stop)["own"]

    assert isinstance(stop, Stop) and stop.exit_code == 137


def test_restarts_that_count_are_there_when_the_early_ones_are_used_up() -> None:
    job = Job(max_restarts=1)
    for attempt in range(EARLY_RESTARTS + 1):
        job.form(attempt)
        job.learn()
        job.die(1, attempt, code=-9)

    assert _starts(job.form(EARLY_RESTARTS + 1)).restarts == 1


@pytest.mark.parametrize("known", [False, True], ids=["no topology", "one replica"])
def test_a_job_that_recovery_does_not_serve_is_not_started_again(known: bool) -> None:
    job = Job(max_restarts=0)
    job.form()
    if known:
        whole = ((0, 1, 2, 3),)
        job.say(0, Topology(rank=0, generation=1, strategy="ddp", replicas=whole))

    stop = _of(job.die(1, 0, code=-9), Stop)["own"]

    assert isinstance(stop, Stop) and stop.exit_code == 137


def test_a_job_that_refused_protection_is_not_started_again() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    job.say(2, verdict(2, "unprotected"))

    stop = _of(job.die(1, 0, code=-9), Stop)["own"]

    assert isinstance(stop, Stop) and stop.exit_code == 137


def test_a_script_that_has_ended_on_some_rank_is_not_run_again() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    job.say(0, Farewell(rank=0, generation=1, step=0))

    stop = _of(job.die(1, 0, code=-9), Stop)["own"]

    assert isinstance(stop, Stop) and stop.exit_code == 137


def test_once_all_can_serve_a_loss_restarts_nothing() -> None:
    job = Job(max_restarts=3)
    job.form()
    job.learn()
    job.promise(0, 1, 2, 3)

    envelopes = job.die(1, 0, code=-9)

    assert _of(envelopes, Restart) == {}
    assert {view.live for p in envelopes if isinstance(view := p.message, View)} == {(0, 2, 3)}


def test_a_failure_without_a_death_starts_all_again_before_all_can_serve() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    fault = PeerFault(rank=0, generation=1, reason="reset")
    assert _of(job.say(0, fault, 0.2), Restart) == {}

    told = _of(job.say(0, fault, 0.2 + DEATH_WAIT_S), Restart)

    assert told.keys() == {"own", "far"}


def test_a_newcomer_waits_for_a_job_that_is_about_to_be_protected() -> None:
    job = Job(max_restarts=0, least=1)
    job.join("own")
    job.coordinator_host.tick(31.0)
    job.say(0, Topology(rank=0, generation=1, strategy="ddp", replicas=((0,), (1,))))

    assert _of(job.join("far", now=32.0), Spare).keys() == {"far"}


def test_a_spare_does_not_take_the_place_of_a_node_that_lives() -> None:
    job = Job(max_restarts=1)
    job.form()
    assert _of(job.join("third"), Spare).keys() == {"third"}

    job.die(3, 0)
    told = [*job.join("third", attempt=1, now=1.2), *job.join("fourth", now=1.2)]
    starts = _of(job.form(attempt=1, now=1.3), Start)

    assert _of(told, Spare).keys() == {"third", "fourth"}
    assert starts.keys() == {"own", "far"}


def test_a_spare_steps_in_for_a_node_that_is_lost_and_that_costs_no_restart() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.join("third")
    envelopes = job.coordinator_host.depart([("far", "its launcher has ended")], 4.0)

    assert _of(envelopes, Restart).keys() == {"own", "third"}
    start = _of(job.join("own", attempt=1, now=4.5), Start)["own"]
    assert isinstance(start, Start) and (start.nnodes, start.restarts) == (2, 0)


def test_a_spare_that_was_not_needed_ends_as_the_job_does() -> None:
    job = Job()
    job.form()
    job.join("third")

    envelopes = job.coordinator_host.stop(Stop(exit_code=0, reason="all ended", root_rank=-1))

    refusal = _of(envelopes, Refusal)["third"]
    assert isinstance(refusal, Refusal) and refusal.exit_code == 0


def test_a_node_that_is_lost_again_and_again_is_held_off_and_then_refused() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()
    now, attempt = 1.0, 0
    names = ["far", "far1", "far2", "far3"]
    for lost, again in zip(names, names[1:], strict=False):
        job.coordinator_host.depart([(lost, "its launcher has ended")], now)
        attempt += 1
        job.join("own", attempt, now)
        job.coordinator_host.tick(now)
        if again == "far3":
            break
        assert _of(_come(job, again, now + 0.1), Spare).keys() == {again}
        now += 30.0
        assert "own" in _of(_come(job, again, now), Restart)
        attempt += 1
        job.join("own", attempt, now)
        job.coordinator_host.tick(now)

    refusal = _of(_come(job, "far3", now), Refusal)["far3"]

    assert isinstance(refusal, Refusal) and "lost 3 times within an hour" in refusal.reason
    flapping_nodes = [r for r in job.records if r.fields.get("event") == "node.lemon"]
    assert len(flapping_nodes) == 2


def _come(job: Job, name: str, now: float) -> list[Envelope]:
    join = Join(run_id="job", node="far", incarnation=name, node_rank=-1, nproc=2, version="1")
    return job.coordinator_host.receive(name, join, now)
