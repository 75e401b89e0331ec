"""Puts the worker's side of snapshots together."""

from typing import Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.snapshots.drain_pace import DrainPace
from recoverrun.worker.snapshots.outer_tops import OuterTops
from recoverrun.worker.snapshots.pace import AutoPace, FixedPace, Pace
from recoverrun.worker.snapshots.restoring import Restoring, give_up
from recoverrun.worker.snapshots.snapshot import Snapshot
from recoverrun.worker.snapshots.taking import Taker
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.bays.client import KeeperClient
from rendezvous.protocol.incarnations import attempt_of
from rendezvous.snapshots.restore_plan import read


def serve(parts: PlaceParts) -> None:
    """Take snapshots, and go on from one if this process is to.

    Raises NotRestored if there is none any more.
    """
    worker, runtime = parts.worker, parts.worker.runtime
    env = worker.env
    steps = UnvotedSteps(runtime, lambda losses: taker.backward_begins(losses))
    client = KeeperClient(env.keeper, env.rank, env.incarnation, env.world_size)
    attempt = attempt_of(env.incarnation)
    outer = OuterTops(runtime)
    pace = _draining(worker, _pace(worker, attempt), attempt)
    taker = Taker(parts, steps, client, pace=pace, attempt=attempt, outer=outer)
    worker.unvoted = steps

    def updated(optimizer: Any, *_: object) -> None:
        if worker.acting:
            return
        steps.updated = True
        if env.finals:
            steps.trains(optimizer)

    runtime.also_tell(taker.begins)
    register_optimizer_step_pre_hook(lambda *_: taker.fence())
    register_optimizer_step_post_hook(updated)
    if (restored := read(env.restore)) is not None:
        try:
            kept = Snapshot(client, *restored)
        except StateLost as why:
            give_up(worker, restored, why)
        restoring = Restoring(parts, steps, kept, outer, taker.resumes)
        runtime.winds = restoring.winding


def _draining(worker: WorkerState, usual: Pace, attempt: int) -> Pace:
    """`usual`, and one snapshot more once the job is about to be ended."""
    alone, key = worker.env.world_size == 1, f"snapshots/{attempt}/drain"

    def tell(step: int) -> None:
        if not alone:
            worker.store(0).set(key, str(step))

    def look() -> int:
        store = worker.store(0)
        return int(store.get(key)) if store.check([key]) else -1

    return DrainPace(
        usual,
        drains=lambda: worker.drains,
        alone=alone,
        tell=None if worker.env.rank else tell,
        look=look,
    )


def _pace(worker: WorkerState, attempt: int) -> Pace:
    """The pace that the user has asked for."""
    env = worker.env
    if env.snapshot_every != "auto":
        return FixedPace(int(env.snapshot_every))

    def key(step: int) -> str:
        return f"snapshots/{attempt}/{step}"

    def tell(step: int, following: int, why: str) -> None:
        if why:
            worker.reporter.notice(why, "snapshot.pace")
        if env.world_size > 1:
            worker.store(0).set(key(step), str(following))

    def hear(step: int) -> int:
        return int(worker.store(0).get(key(step)))

    return AutoPace(None if env.rank else tell, hear)
