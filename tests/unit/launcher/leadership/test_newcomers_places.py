"""Places of lost nodes at the coordinator host: given to who waits, while the job runs."""

from recoverrun.launcher.network.frames import Envelope
from rendezvous.coordinator.recovery_policy import USUAL, RecoveryPolicy
from rendezvous.protocol.arrival_messages import StartAgain
from rendezvous.protocol.formation_messages import Beat, Spare, Start
from rendezvous.protocol.messages import Stop
from tests.unit.hosted_job import Job, of

LOST = [("far", "its launcher has ended")]


def running(policy: RecoveryPolicy = USUAL) -> Job:
    """All four ranks have promised; "far" hosts ranks 2 and 3."""
    job = Job(max_restarts=0, policy=policy)
    job.form()
    job.learn()
    job.promise(0, 1, 2, 3)
    return job


def starts(envelopes: list[Envelope]) -> dict[str, tuple[int, int, bool]]:
    found = of(envelopes, Start)
    return {
        name: (start.node_rank, start.first_rank, start.succeeds)
        for name, start in found.items()
        if isinstance(start, Start)
    }


def test_a_launcher_that_comes_takes_the_place_of_a_lost_one() -> None:
    job = running(RecoveryPolicy(returns=True))
    job.coordinator_host.depart(LOST, 1.0)
    waits = job.join("late", now=4.0)
    told = job.coordinator_host.tick(4.1)

    assert of(waits, Spare).keys() == {"late"}
    assert starts(told) == {"own": (0, 0, True), "late": (1, 2, True)}
    orders = [e.message for e in told if e.to == "late" and isinstance(e.message, StartAgain)]
    assert {order.ranks for order in orders if isinstance(order, StartAgain)} == {(2,), (3,)}
    assert job.coordinator_host.tick(4.2) == []


def test_a_spare_takes_the_place_as_soon_as_the_loss_is_known() -> None:
    job = running(RecoveryPolicy(returns=True))
    job.join("late")
    assert starts(job.coordinator_host.tick(0.5)) == {}

    job.coordinator_host.depart(LOST, 1.0)
    assert starts(job.coordinator_host.tick(1.1)).keys() == {"own", "late"}
    assert of(job.coordinator_host.receive("far", Beat(node="far", incarnation="far"), 2.0), Stop)


def test_a_node_is_missing_until_somebody_is_there_for_its_place() -> None:
    forming = Job()
    forming.join("own")
    assert not forming.coordinator_host.misses_nodes  # who joins knows of this launcher

    job = running()
    assert not job.coordinator_host.misses_nodes
    job.coordinator_host.depart(LOST, 1.0)
    assert job.coordinator_host.misses_nodes
    job.join("late", now=4.0)
    assert not job.coordinator_host.misses_nodes


def test_without_returns_a_spare_waits_on() -> None:
    job = running()
    job.join("late")
    job.coordinator_host.depart(LOST, 1.0)

    assert starts(job.coordinator_host.tick(1.1)) == {}


def test_who_did_not_hear_of_it_asks_again_and_is_told() -> None:
    job = running(RecoveryPolicy(returns=True))
    job.coordinator_host.depart(LOST, 1.0)
    job.join("late", now=4.0)
    job.coordinator_host.tick(4.1)

    assert starts(job.join("late", now=5.0)) == {"late": (1, 2, True)}
    assert starts(job.join("own", now=5.0)) == {"own": (0, 0, True)}


def test_a_launcher_that_falls_silent_before_it_takes_part_leaves_its_place_to_another() -> None:
    job = running(RecoveryPolicy(returns=True))
    job.coordinator_host.depart(LOST, 1.0)
    job.join("late", now=4.0)
    for second in range(10):
        job.coordinator_host.tick(4.1 + second)
    job.join("later", now=15.0)

    assert starts(job.coordinator_host.tick(15.1)).keys() == {"own", "later"}


def test_once_it_takes_part_only_the_register_sees_whether_it_lives() -> None:
    job = running(RecoveryPolicy(returns=True))
    job.coordinator_host.depart(LOST, 1.0)
    job.join("late", now=4.0)
    job.coordinator_host.tick(4.1)
    job.coordinator_host.depart([], 4.5, came=["late"])
    for second in range(10):
        job.coordinator_host.tick(4.6 + second)
    job.join("later", now=15.0)

    assert starts(job.coordinator_host.tick(15.1)) == {}
