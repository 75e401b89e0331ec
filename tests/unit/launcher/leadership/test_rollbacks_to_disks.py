"""Snapshots that are written to disks, and what a job goes back to there."""

import pytest

from recoverrun.launcher.network.frames import Envelope
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.formation_messages import Join, Restart, Start
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.snapshot_messages import Keep, Persist, Restored
from rendezvous.snapshots.identity import on_disk
from tests.unit.hosted_job import Job, of
from tests.unit.snapshot_jobs import SnapshotJob, starts_of

SIGKILL = -9


class WritingJob(SnapshotJob):
    """Snapshots are written, too, to directories in which others have written before."""

    def __init__(self, **starts: int) -> None:
        policy = RecoveryPolicy(snapshot_parity=0, snapshots_on_disk=True)
        Job.__init__(self, max_restarts=0, policy=policy)
        self.serial = 0
        self.held = {"own": (), "far": ()}
        self.starts = starts

    def join(self, name: str, attempt: int = 0, now: float = 0.0) -> list[Envelope]:
        join = Join(
            run_id="job", node=name, incarnation=name, node_rank=-1, nproc=2, version="1",
            master=f"{name}:{attempt}", attempt=attempt, holding=self.held[name],
            starts=self.starts[name],
        )  # fmt: skip
        told = self.coordinator_host.receive(name, join, now)
        for to, start in of(told, Start).items():
            assert isinstance(start, Start)
            self.starts[to] = start.number
        return told


def test_each_attempt_writes_under_a_number_above_all_that_its_nodes_know() -> None:
    job = WritingJob(own=6, far=2)
    job.form()
    told = of(job.keep(0, 20), Persist)
    job.die(3, 0, code=SIGKILL)
    job.form(1)

    assert {(p.start, p.step) for p in told.values() if isinstance(p, Persist)} == {(7, 20)}
    assert job.starts == {"own": 8, "far": 8}


@pytest.mark.parametrize("unfit", [True, False], ids=["unfit", "damaged"])
def test_what_cannot_be_gone_on_from_on_disks_is_followed_by_an_older_one_there(
    unfit: bool,
) -> None:
    job = WritingJob(own=7, far=7)
    there = [on_disk(7, 25), on_disk(6, 20)]
    for name, ranks in {"own": range(2), "far": range(2, 4)}.items():
        job.held[name] = tuple((*one, 4, rank, 10) for one in there for rank in ranks)
    assert starts_of(job.form()) == {(0, 0, "0:25@7")}
    words = "the losses of that step are not what they were"
    failed = Restored(
        rank=3, incarnation=incarnation(0, 0), attempt=0, step=25, state_ms=0, failed=words,
        unfit=unfit,
    )  # fmt: skip
    for name in ("own", "far"):
        job.state(name, (0, 0, (0, 25), (-1, -1)))
    kept = [one.message for one in job.say(3, failed) if isinstance(one.message, Keep)]
    told = of(job.die(3, 0, f"NotRestored: {words}"), Restart)

    assert all(on_disk(7, 25) in keep.unfit for keep in kept) and len(kept) == 2
    assert {r.back for r in told.values() if isinstance(r, Restart)} == {20}
    assert starts_of(job.form(1)) == {(1, 0, "1:20@6")}
