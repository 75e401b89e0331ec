"""Newcomers at the coordinator host: nodes that come late, wait, or come again and again."""

from recoverrun.launcher.network.frames import Envelope
from rendezvous.protocol.formation_messages import Join, Refusal, Restart, Spare, Start
from rendezvous.protocol.messages import (
    Stop,
    Topology,
)
from tests.unit.hosted_job import Job, of


def test_a_newcomer_waits_for_a_job_that_is_about_to_be_protected() -> None:
    job = Job(max_restarts=0, least=1)
    job.join("own")
    job.coordinator_host.tick(31.0)
    job.say(0, Topology(rank=0, generation=1, strategy="ddp", replicas=((0,), (1,))))

    assert of(job.join("far", now=32.0), Spare).keys() == {"far"}


def test_a_spare_does_not_take_the_place_of_a_node_that_lives() -> None:
    job = Job(max_restarts=1)
    job.form()
    assert of(job.join("third"), Spare).keys() == {"third"}

    job.die(3, 0)
    told = [*job.join("third", attempt=1, now=1.2), *job.join("fourth", now=1.2)]
    starts = of(job.form(attempt=1, now=1.3), Start)

    assert of(told, Spare).keys() == {"third", "fourth"}
    assert starts.keys() == {"own", "far"}


def test_a_spare_steps_in_for_a_node_that_is_lost_and_that_costs_no_restart() -> None:
    job = Job(max_restarts=0)
    job.form()
    job.join("third")
    envelopes = job.coordinator_host.depart([("far", "its launcher has ended")], 4.0)

    assert of(envelopes, Restart).keys() == {"own", "third"}
    start = of(job.join("own", attempt=1, now=4.5), Start)["own"]
    assert isinstance(start, Start) and (start.nnodes, start.restarts) == (2, 0)


def test_a_spare_that_was_not_needed_ends_as_the_job_does() -> None:
    job = Job()
    job.form()
    job.join("third")

    envelopes = job.coordinator_host.stop(Stop(exit_code=0, reason="all ended", root_rank=-1))

    refusal = of(envelopes, Refusal)["third"]
    assert isinstance(refusal, Refusal) and refusal.exit_code == 0


def test_a_node_that_is_held_off_as_the_job_ends_ends_with_it() -> None:
    job = Job(max_restarts=0, least=1)
    job.form()
    job.coordinator_host.depart([("far", "its launcher has ended")], 1.0)
    job.join("own", 1, 1.0)
    job.coordinator_host.tick(1.0)
    assert of(_come(job, "far1", 1.1), Spare).keys() == {"far1"}

    envelopes = job.coordinator_host.stop(Stop(exit_code=0, reason="all ended", root_rank=-1))

    assert of(envelopes, Refusal).keys() == {"far1"}


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
        assert of(_come(job, again, now + 0.1), Spare).keys() == {again}
        now += 30.0
        assert "own" in of(_come(job, again, now), Restart)
        attempt += 1
        job.join("own", attempt, now)
        job.coordinator_host.tick(now)

    refusal = of(_come(job, "far3", now), Refusal)["far3"]

    assert isinstance(refusal, Refusal) and "lost 3 times within an hour" in refusal.reason
    flapping_nodes = [r for r in job.records if r.fields.get("event") == "node.lemon"]
    assert len(flapping_nodes) == 2


def _come(job: Job, name: str, now: float) -> list[Envelope]:
    join = Join(run_id="job", node="far", incarnation=name, node_rank=-1, nproc=2, version="1")
    return job.coordinator_host.receive(name, join, now)
