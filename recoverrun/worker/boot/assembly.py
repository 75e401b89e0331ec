"""Puts the parts of recovery together: the only place that knows all their classes.

It is imported once the script has imported torch, which nearly all of them need.
"""

from functools import partial

from ft_collectives.process_group.substitution_policy import SubstitutionPolicy
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.observer import TorchObserver
from recoverrun.worker.groups.prologue import Prologue
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.lost_operands import LostOperands
from recoverrun.worker.make_up.make_up import MakeUp
from recoverrun.worker.make_up.microbatch_maker import MicrobatchMaker
from recoverrun.worker.make_up.taken_over import TakenOver
from recoverrun.worker.patches import torch_table
from recoverrun.worker.patches.parts import Parts
from recoverrun.worker.rank0 import failover, shared_values
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.shard_mates import ShardMates
from recoverrun.worker.step.driver import Driver
from recoverrun.worker.step.hung_thread import leave_hung, leave_mates
from recoverrun.worker.step.stack_dump import arm
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from recoverrun.worker.verification.drift_check import DriftCheck
from recoverrun.worker.verification.mutual_proof import MutualProof
from recoverrun.worker.verification.nonfinite import NonfiniteCheck
from recoverrun.worker.verification.proofs import Proofs
from recoverrun.worker.verification.rehearsal import Rehearsal
from recoverrun.worker.verification.verifier import Verification
from rendezvous.protocol.worker_env import WorkerEnv
from rendezvous.transport.worker_link import WorkerLink


def assemble(env: WorkerEnv, link: WorkerLink, runtime: ScriptRuntime) -> Driver:
    """Make what protects this worker, let it hear the launcher, and fill the table of torch."""
    worker = WorkerState(env, link, runtime)
    mates = ShardMates(
        env.rank, partial(leave_mates, worker), lambda: worker.layout, lambda: worker.store(0)
    )
    executor = Executor(runtime, partial(leave_hung, worker), worker.others_wait_s, mates.together)
    sources = DataSources(runtime, executor)
    drift = DriftCheck(worker, executor.captures, executor.influence.matters)
    left = LeftContexts(worker, executor, drift.informs)
    maker = MicrobatchMaker(worker, executor, left, Rehearsal(worker, executor))
    make_up = MakeUp(worker, executor, left, maker)
    mutual = MutualProof(worker, executor, sources, drift)
    proofs = Proofs(worker, executor, mutual, partial(shared_values.exchange, worker))
    verifier = Verification(worker, proofs, drift, NonfiniteCheck(worker, executor))
    operands, taken = LostOperands(worker, executor), TakenOver(worker, executor.influence)

    def on_exchange() -> None:
        runtime.hears()
        taken.exchanges()

    policy = SubstitutionPolicy(
        replaying=lambda: worker.acting,
        result_alone=executor.unheard,
        on_exchange=on_exchange,
        find_lost_inputs=operands.find,
        on_partial=operands.partial,
    )
    driver = Driver(worker, executor, left=left, make_up=make_up, verifier=verifier, policy=policy)
    runtime.see(TorchObserver(), driver.iteration_begins, sources.feed)
    failover.serve(worker, executor, left)
    arm(env.context)
    driver.control.start()
    made, prologue = MadeObjects(), Prologue()
    if env.returns or env.keeper:
        # Only then: other runs do not pay for these imports.
        from recoverrun.worker.arrival.learned import PlaceParts

        place = PlaceParts(
            worker=worker, driver=driver, executor=executor, left=left, make_up=make_up,
            sources=sources, verifier=verifier, made=made, taken=taken,
        )  # fmt: skip
        snapshots, gives = None, None
        if env.keeper:
            from recoverrun.worker.snapshots.serving import Serving

            snapshots = Serving(place)
        if env.returns:
            from recoverrun.worker.arrival import coming_back

            past = None if snapshots is None else snapshots.earlier_values
            prologue, gives = coming_back.serve(place, past)
        if snapshots is not None:
            snapshots.go_back(gives)
    parts = Parts(
        worker=worker, driver=driver, executor=executor, left=left, sources=sources, made=made,
        prologue=prologue,
    )  # fmt: skip
    torch_table.install(parts)
    return driver
