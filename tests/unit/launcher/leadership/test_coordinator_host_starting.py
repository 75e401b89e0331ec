"""The coordinator host: what a loss costs before recovery can help."""

import pytest

from recoverrun.launcher.leadership.attempts import EARLY_RESTARTS
from recoverrun.launcher.leadership.first_failure import ACROSS_S
from recoverrun.launcher.network.frames import Envelope
from rendezvous.coordinator.beginning import DEATH_WAIT_S
from rendezvous.protocol.formation_messages import Restart, Start
from rendezvous.protocol.messages import Exited, Farewell, PeerFault, Stop, Topology
from rendezvous.protocol.views import View
from tests.unit.coordination import verdict
from tests.unit.hosted_job import Job, of


def _starts(envelopes: list[Envelope]) -> Start:
    start = of(envelopes, Start)["own"]
    assert isinstance(start, Start)
    return start


def test_a_rank_that_is_killed_before_all_can_serve_costs_no_restart() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    job.promise(0, 1, 2)

    told = of(job.die(1, 0, code=-9), Restart)

    assert told.keys() == {"own", "far"}
    restart = told["own"]
    assert isinstance(restart, Restart) and restart.root_rank == 1
    assert restart.reason.endswith(", before the first step was over")
    start = _starts(job.form(attempt=1))
    assert (start.attempt, start.restarts) == (1, 0)


def test_an_error_of_the_script_before_all_can_serve_ends_the_job() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()

    stop = of(job.die(1, 0, "ValueError: bad"), Stop)["own"]

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
    stop = of(job.coordinator_host.tick(0.6 + ACROSS_S), Stop)["own"]

    assert isinstance(stop, Stop) and (stop.exit_code, stop.root_rank) == (7, 3)


def test_a_job_is_started_again_three_times_and_no_more_before_it_can_serve() -> None:
    job = Job(max_restarts=0)
    for attempt in range(EARLY_RESTARTS):
        job.form(attempt)
        job.learn()
        assert of(job.die(1, attempt, code=-9), Restart)
    job.form(EARLY_RESTARTS)
    job.learn()

    stop = of(job.die(1, EARLY_RESTARTS, code=-9), Stop)["own"]

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

    stop = of(job.die(1, 0, code=-9), Stop)["own"]

    assert isinstance(stop, Stop) and stop.exit_code == 137


def test_a_job_that_refused_protection_is_not_started_again() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    job.say(2, verdict(2, "unprotected"))

    stop = of(job.die(1, 0, code=-9), Stop)["own"]

    assert isinstance(stop, Stop) and stop.exit_code == 137


def test_a_script_that_has_ended_on_some_rank_is_not_run_again() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    job.say(0, Farewell(rank=0, generation=1, step=0))

    stop = of(job.die(1, 0, code=-9), Stop)["own"]

    assert isinstance(stop, Stop) and stop.exit_code == 137


def test_once_all_can_serve_a_loss_restarts_nothing() -> None:
    job = Job(max_restarts=3)
    job.form()
    job.learn()
    job.promise(0, 1, 2, 3)

    envelopes = job.die(1, 0, code=-9)

    assert of(envelopes, Restart) == {}
    assert {view.live for p in envelopes if isinstance(view := p.message, View)} == {(0, 2, 3)}


def test_a_failure_without_a_death_starts_all_again_before_all_can_serve() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.learn()
    fault = PeerFault(rank=0, generation=1, reason="reset")
    assert of(job.say(0, fault, 0.2), Restart) == {}

    told = of(job.say(0, fault, 0.2 + DEATH_WAIT_S), Restart)

    assert told.keys() == {"own", "far"}
