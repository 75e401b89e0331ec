"""Puts the worker's side of snapshots together."""

from collections.abc import Callable
from typing import Any

from torch._compile import _disable_dynamo
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ft_collectives.communicators.script_modes import aside
from recoverrun.worker.arrival.learned import Gives, PlaceParts
from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.snapshots.drain_pace import DrainPace
from recoverrun.worker.snapshots.earlier_values import EarlierValues
from recoverrun.worker.snapshots.failures import give_up, tell_unfit
from recoverrun.worker.snapshots.outer_tops import OuterTops
from recoverrun.worker.snapshots.pace import AutoPace, FixedPace, Pace, Work
from recoverrun.worker.snapshots.restoring import Restoring
from recoverrun.worker.snapshots.snapshot import Snapshot
from recoverrun.worker.snapshots.taking import Taker, unserved
from recoverrun.worker.snapshots.uncounted_updates import UncountedUpdates
from recoverrun.worker.snapshots.values_at_start import ValuesAtStart
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.bays.client import KeeperClient
from rendezvous.protocol.incarnations import attempt_of
from rendezvous.protocol.worker_env import UNASKED, UNASKED_AFTER_S
from rendezvous.snapshots.identity import SnapshotId
from rendezvous.snapshots.restore_plan import read

PROMISED = "one is taken every {} steps; --snapshot-every=0 takes none"


class Serving:
    """The snapshots of one worker, which are taken from now on."""

    def __init__(self, parts: PlaceParts) -> None:
        worker, env, runtime = parts.worker, parts.worker.env, parts.worker.runtime
        self._parts = parts
        self._steps = steps = UnvotedSteps(
            runtime, lambda losses: taker.backward_begins(losses), lambda: unserved(parts.made)
        )
        self._client = KeeperClient(env.keeper, env.rank, env.incarnation, env.world_size)
        attempt = attempt_of(env.incarnation)
        self._outer = OuterTops(runtime)
        self.earlier_values = EarlierValues(parts, steps, self._outer)
        pace = _draining(worker, _pace(worker, attempt, lambda: taker.work), attempt)
        worker.on_no_snapshots = pace.ends
        uncounted = UncountedUpdates(worker, steps, lambda: parts.made.of("optimizers"))
        self._taker = taker = Taker(
            parts,
            steps,
            self._client,
            pace=pace,
            attempt=attempt,
            earlier_values=self.earlier_values,
            uncounted=uncounted,
        )
        worker.unvoted = steps

        @aside
        def updated(optimizer: Any, *_: object) -> None:
            if worker.acting:
                return
            uncounted.updated()
            if env.finals:
                steps.trains(optimizer)

        @aside
        def update_begins() -> None:
            if not worker.acting:
                uncounted.update_begins()
            taker.fence()

        runtime.on_loop = aside(taker.loop_begins)
        runtime.also_tell(aside(taker.begins))
        # An optimizer may be compiled: that is none of its steps' business.
        register_optimizer_step_pre_hook(_disable_dynamo(lambda *_: update_begins()))
        register_optimizer_step_post_hook(_disable_dynamo(updated))

    def go_back(self, gives: Gives | None) -> None:
        """Go on from a snapshot if this process is to, which `gives` lost ranks their places later.

        Raises NotRestored if there is none any more.
        """
        parts, taker = self._parts, self._taker
        worker, restored = parts.worker, read(parts.worker.env.restore)
        if restored is None or worker.env.birth:
            return
        try:
            kept = Snapshot(self._client, *restored)
        except StateLost as why:
            give_up(worker, restored, why)

        def resumes(of: SnapshotId, before: ValuesAtStart, proof: int | None) -> None:
            taker.resumes(of, before, proof)
            if gives is not None:
                gives.know(before.for_returns())

        worker.on_not_reached = lambda why: tell_unfit(worker, kept.id, why)
        worker.runtime.winds = Restoring(parts, self._steps, kept, self._outer, resumes).winding


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


def _pace(worker: WorkerState, attempt: int, work: Callable[[], Work]) -> Pace:
    """The pace that the user has asked for. Where nobody has, `work` is bounded, too."""
    env = worker.env
    if env.snapshot_every not in ("auto", UNASKED):
        return FixedPace(int(env.snapshot_every))

    unasked, given_up = env.snapshot_every == UNASKED, f"snapshots/{attempt}/given-up"
    most = 0  # steps from one to the next, as said where nobody has asked

    def key(step: int) -> str:
        return f"snapshots/{attempt}/{step}"

    def tell(step: int, following: int, why: str) -> None:
        nonlocal most
        if why and not (unasked and following - step <= most):
            most = following - step
            if not worker.guarantee.tell(PROMISED.format(most)):
                worker.reporter.notice(why, "snapshot.pace")
        if env.world_size > 1:
            worker.store(0).set(key(step), str(following))

    def hear(step: int) -> int | None:
        store = worker.store(0)
        return int(store.get(key(step))) if store.check([key(step)]) else None

    def reason() -> str:
        store = worker.store(0)
        told = env.world_size > 1 and store.check([given_up])
        return store.get(given_up).decode() if told else ""

    return AutoPace(
        None if env.rank else tell,
        hear,
        after_s=UNASKED_AFTER_S if unasked else 0.0,
        give_up=lambda why: worker.store(0).set(given_up, why),
        given_up=reason,
        worked=work if unasked else None,
    )
