"""A loss that would end the job: where all ranks have a snapshot they go back to it instead."""

import pytest

from recoverrun.launcher.leadership.acts import TakeOver
from recoverrun.launcher.leadership.first_failure import ACROSS_S
from recoverrun.launcher.leadership.handover import Told, held
from recoverrun.launcher.leadership.rollbacks import is_loss
from recoverrun.launcher.network.frames import Envelope
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.coordinator.snapshots import ALIKE
from rendezvous.coordinator.standing import Memory, Vacancy
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Join, Refusal, Restart, Start
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.messages import Stop
from rendezvous.protocol.snapshot_messages import (
    Held,
    Holding,
    Keep,
    Order,
    Restored,
    Share,
)
from tests.unit.hosted_job import Job, of
from tests.unit.snapshot_jobs import SnapshotJob, starts_of

SIGKILL, SIGSEGV = -9, -11


def test_a_killed_rank_sends_all_back_and_that_does_not_count() -> None:
    job = SnapshotJob()
    job.form()
    safe = of(job.keep(0, 20), Keep)
    told = of(job.die(3, 0, code=SIGKILL), Restart)

    assert {k.order for k in safe.values() if isinstance(k, Keep)} == {(0, 2, (0, 20), (-1, -1))}
    assert safe.keys() == told.keys() == {"own", "far"}
    assert {r.back for r in told.values() if isinstance(r, Restart)} == {20}
    assert starts_of(job.form(1)) == {(1, 0, "0:20")}


def _replicated() -> SnapshotJob:
    """Four replicas of one rank each, all of which have said what they promise."""
    job = SnapshotJob()
    job.form()
    job.learn()
    job.promise(*range(4))
    job.keep(0, 20)
    return job


def test_as_long_as_a_replica_is_left_nobody_goes_back() -> None:
    job = _replicated()
    told = [envelope for rank in (3, 0, 2) for envelope in job.die(rank, 0, code=SIGKILL)]

    assert not of(told, Restart) and not of(told, Stop)


def test_where_no_replica_is_left_all_go_back_and_that_does_not_count() -> None:
    job = _replicated()
    for rank in (3, 0, 2):
        job.die(rank, 0, code=SIGKILL)
    told = of(job.die(1, 0, code=SIGKILL), Restart)

    assert {r.back for r in told.values() if isinstance(r, Restart)} == {20}
    assert starts_of(job.form(1)) == {(1, 0, "0:20")}


def test_fewer_replicas_than_are_wanted_send_all_back() -> None:
    job = SnapshotJob(least=3)
    job.form()
    job.learn()
    job.promise(*range(4))
    job.keep(0, 20)
    assert not of(job.die(3, 0, code=SIGKILL), Restart)

    assert of(job.die(2, 0, code=SIGKILL), Restart).keys() == {"own", "far"}


def test_ranks_stay_on_their_nodes_whoever_comes_first() -> None:
    job = SnapshotJob()
    job.form()
    job.keep(0, 20)
    job.die(3, 0, code=SIGKILL)
    starts = of([*job.join("far", 1), *job.join("own", 1)], Start)
    ranks = {name: s.first_rank for name, s in starts.items() if isinstance(s, Start)}

    assert ranks == {"own": 0, "far": 2}


def test_a_rank_that_dies_at_one_step_time_and_again_ends_the_job() -> None:
    job = SnapshotJob()
    for attempt in range(ALIKE):
        job.form(attempt)
        job.keep(attempt, 20 + attempt)
        told = job.die(3, attempt, code=SIGSEGV, step=30)
        assert of(told, Restart).keys() == {"own", "far"}
    job.form(ALIKE)
    job.keep(ALIKE, 20 + ALIKE)

    stop = of(job.die(3, ALIKE, code=SIGSEGV, step=30), Stop)["own"]
    assert isinstance(stop, Stop) and stop.exit_code == 139


def test_without_a_snapshot_the_job_ends_as_it_did() -> None:
    job = SnapshotJob()
    job.form()
    job.keep(0, 20, "own")

    assert of(job.die(3, 0, code=SIGKILL), Stop).keys() == {"own", "far"}


def test_an_error_of_the_script_counts_and_goes_back_as_well() -> None:
    job = SnapshotJob(max_restarts=1)
    job.form()
    job.keep(0, 20)
    job.die(3, 0, "ValueError: bad")
    assert starts_of(job.form(1)) == {(1, 1, "0:20")}

    assert of(job.die(3, 1, "ValueError: bad"), Stop)


def test_what_is_held_when_they_join_decides() -> None:
    job = SnapshotJob()
    job.form()
    job.keep(0, 20)
    job.die(3, 0, code=SIGKILL)
    job.held = {name: (*held, *_newer(held)) for name, held in job.held.items()}

    assert starts_of(job.form(1)) == {(1, 0, "0:25")}


def _newer(held: tuple[Held, ...]) -> tuple[Held, ...]:
    return tuple(
        (attempt, step + 5, world, rank, size) for attempt, step, world, rank, size in held
    )


@pytest.mark.parametrize(
    ("code", "loss"), [(137, True), (81, True), (82, True), (1, False), (7, False), (0, False)]
)
def test_an_error_of_a_script_is_no_loss(code: int, loss: bool) -> None:
    assert is_loss(Stop(exit_code=code, reason="", root_rank=0)) == loss


def _gone_back_to_the_newer() -> SnapshotJob:
    """All have gone back to step 25, and keepers have the snapshot of step 20, too."""
    job = SnapshotJob()
    job.form()
    job.keep(0, 20)
    job.held = {name: (*held, *_newer(held)) for name, held in job.held.items()}
    job.die(3, 0, code=SIGKILL)
    assert starts_of(job.form(1)) == {(1, 0, "0:25")}
    return job


def test_a_damaged_part_sends_all_back_to_another_snapshot_and_does_not_count() -> None:
    job = _gone_back_to_the_newer()
    for name in ("own", "far"):
        job.state(name, (1, 0, (0, 25), (0, 20)))
    words = "part 0 of a kept snapshot is damaged"
    job.say(3, Restored(rank=3, incarnation=incarnation(1, 0), attempt=0, step=25, state_ms=0,
                        failed=words))  # fmt: skip
    told = of(job.die(3, 1, f"NotRestored: {words}"), Restart)
    job.held["far"] = tuple(one for one in job.held["far"] if one[:4] != (0, 25, 4, 3))

    assert {r.back for r in told.values() if isinstance(r, Restart)} == {20}
    assert starts_of(job.form(2)) == {(2, 0, "0:20")}


def _unfit(job: SnapshotJob, step: int, words: str) -> list[Envelope]:
    """Rank 3 cannot go on from the snapshot of that step, whose parts its keepers still have."""
    job.say(3, Restored(rank=3, incarnation=incarnation(1, 0), attempt=0, step=step, state_ms=0,
                        failed=words, unfit=True))  # fmt: skip
    return job.die(3, 1, f"NotRestored: {words}")


def test_nobody_goes_back_again_to_a_snapshot_that_does_not_fit() -> None:
    job = _gone_back_to_the_newer()
    for rank in range(4):
        job.say(rank, Restored(rank=rank, incarnation=incarnation(1, 0), attempt=0, step=25,
                               state_ms=0))  # fmt: skip
    words = "the losses of that step are not what they were"
    told = of(_unfit(job, 25, words), Restart)
    said = [record.reason for record in job.records if record.event == "notice.give"]

    assert {r.back for r in told.values() if isinstance(r, Restart)} == {20}
    assert starts_of(job.form(2)) == {(2, 0, "0:20")}
    assert said == [f"the snapshot of step 25 is not gone back to again: {words}"]


def test_where_the_node_that_coordinated_is_lost_its_successor_sends_all_back() -> None:
    """It decides before anybody speaks to it: what members have held comes with the office."""
    job, successor = SnapshotJob(), SnapshotJob()
    start = of(job.form(), Start)["far"]
    assert isinstance(start, Start)
    mirror = (0, 20, 4, 1, 1, ((0, 2), (2, 2)))
    holding = Holding(
        keeper=1, serial=1, order=(0, 2, (0, 20), (-1, -1)),
        held=((0, 20, 4, 2, 10), (0, 20, 4, 3, 10)), shares=(mirror,),
    )  # fmt: skip
    lost = ("own", (0, 1), "its launcher has ended")
    vacancy = Vacancy(
        term=2, world=(0, 1, 2, 3), policy=RecoveryPolicy(snapshot_parity=1), lost=(lost,),
        reason="",
    )  # fmt: skip
    memory = Memory()
    memory.said(holding)
    told: Told = (("far", ()),)

    standings = (memory.standing,)
    takeover = TakeOver(vacancy, standings, 0, (), held(told, standings))
    envelopes = successor.coordinator_host.take_over(start, vacancy, takeover, 5.0)
    envelopes += successor.coordinator_host.tick(5.0 + ACROSS_S)

    restart = of(envelopes, Restart)["far"]
    assert isinstance(restart, Restart)
    assert restart.back == 20


def test_all_keepers_are_told_of_a_snapshot_that_does_not_fit_once() -> None:
    """A coordinator that comes later is told of what they have."""
    job = _gone_back_to_the_newer()
    of_rank = Restored(
        rank=3, incarnation=incarnation(1, 0), attempt=0, step=25, state_ms=0, failed="no",
        unfit=True,
    )  # fmt: skip
    told = [one for _ in range(2) for one in job.say(3, of_rank)]

    keeps = {one.to: one.message.unfit for one in told if isinstance(one.message, Keep)}
    assert keeps == {"own": ((0, 25),), "far": ((0, 25),)}
    assert len(told) == 2


def test_where_the_only_snapshot_does_not_fit_the_job_ends() -> None:
    job = SnapshotJob()
    job.form()
    job.keep(0, 20)
    job.die(3, 0, code=SIGKILL)
    job.form(1)

    assert of(_unfit(job, 20, "modules differ"), Stop).keys() == {"own", "far"}


def test_parts_that_are_lost_for_good_are_told_as_the_job_ends() -> None:
    job = SnapshotJob()
    job.form()
    job.keep(0, 20)
    job.coordinator_host.depart([("far", "its launcher has ended")], 1.0)

    said = [record.reason for record in job.records if record.event == "notice.give"]
    assert "the snapshot of step 20 cannot be gone back to: parts of it are lost" in said


class ParityJob(SnapshotJob):
    """Two nodes that are a mirror of each other; what they hold is as it was when they joined."""

    def __init__(self) -> None:
        Job.__init__(self, max_restarts=0)
        self.serial = 0
        self.held = {"own": (), "far": (), "late": ()}
        self.shares: dict[str, tuple[Share, ...]] = {"own": (), "far": (), "late": ()}

    def mirror(self, step: int) -> None:
        members = ((0, 2), (2, 2))
        for slot, name in enumerate(("own", "far")):
            self.shares[name] = ((0, step, 4, 1, slot, members),)

    def state(self, name: str, order: Order) -> list[Envelope]:
        self.serial += 1
        holding = Holding(
            keeper=1, serial=self.serial, order=order, held=self.held[name],
            shares=self.shares[name],
        )  # fmt: skip
        return self.coordinator_host.receive(name, holding, 0.1)

    def join(self, name: str, attempt: int = 0, now: float = 0.0) -> list[Envelope]:
        join = Join(
            run_id="job", node=name, incarnation=name, node_rank=-1, nproc=2, version="1",
            master=f"{name}:{attempt}", attempt=attempt, holding=self.held[name],
            shares=self.shares[name],
        )  # fmt: skip
        return self.coordinator_host.receive(name, join, now)


def _without_a_node() -> tuple[ParityJob, list[Envelope]]:
    job = ParityJob()
    job.form()
    job.mirror(20)
    for step in (20, 20):
        job.keep(0, step)
    return job, job.coordinator_host.depart([("far", "its launcher has ended")], 1.0)


def test_a_lost_node_is_waited_for_and_its_part_is_rebuilt() -> None:
    job, told = _without_a_node()
    assert {r.back for r in of(told, Restart).values() if isinstance(r, Restart)} == {20}
    job.join("own", 1, now=1.1)

    assert starts_of(job.join("late", 0, now=50.0)) == {(1, 0, "0:20")}


def test_a_node_that_never_comes_ends_the_job_with_a_sentence() -> None:
    job, _ = _without_a_node()
    job.join("own", 1, now=1.1)
    told = job.coordinator_host.tick(602.0)

    (refusal,) = of(told, Refusal).values()
    assert isinstance(refusal, Refusal)
    assert refusal.exit_code == ExitCode.REQUEUE
    assert refusal.reason.startswith("the snapshot of step 20 is for 4 ranks: 1 of 2 nodes joined")
