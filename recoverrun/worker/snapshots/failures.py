"""A process that was to go on from a snapshot and cannot.

The coordinator hears of it, and all ranks go back again, to what can be had.
"""

from typing import Never

from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.snapshots.snapshot import NotRestored
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.snapshot_messages import Restored
from rendezvous.snapshots.identity import SnapshotId


def give_up(worker: WorkerState, wanted: SnapshotId, why: StateLost) -> Never:
    """This rank's part cannot be had: all go back again, to what can be. Raises NotRestored."""
    _tell_failed(worker, wanted, str(why), unfit=False)
    raise NotRestored(f"the snapshot of step {wanted.step} cannot be used: {why}") from why


def fail(worker: WorkerState, wanted: SnapshotId, why: str) -> Never:
    """The script does not come to where it was: all go back again, to an older snapshot, if there
    is one. Raises NotRestored.
    """
    tell_unfit(worker, wanted, why)
    raise NotRestored(f"the snapshot of step {wanted.step} does not fit: {why}")


def tell_unfit(worker: WorkerState, wanted: SnapshotId, why: str) -> None:
    """Tell that no process comes to where this snapshot was taken; this one is about to end."""
    _tell_failed(worker, wanted, why, unfit=True)


def _tell_failed(worker: WorkerState, wanted: SnapshotId, why: str, *, unfit: bool) -> None:
    env = worker.env
    worker.link.send(
        Restored(
            rank=env.rank, incarnation=env.incarnation, attempt=wanted.attempt, step=wanted.step,
            state_ms=0.0, failed=why, unfit=unfit,
        )
    )  # fmt: skip
