"""`--exact`: parameters and optimizer state are those of the run without losses, bit for bit.

Three things make that so. A microbatch that is executed again gives its gradient bit for bit, as is
proved in the first transaction (`proofs`). A lost slot's gradients never enter the
accumulators of the rank that computes them: they are kept apart, by slot and index (`Reducer.add`).
And all are added up in an order that knows slots and indices only (`exact_sum`).

Where one of these does not hold, the run ends with a sentence: before its first optimizer step, or
where a later proof shows it (as another batch or another epoch begins). Once a replica has come
back it may be that one's doing, and no run ends by a process that was to help it: the promise comes
down, and the run says that it is not exact from there on.
"""

import sys
from collections.abc import Mapping

from ft_collectives.communicators.channel import Channel
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.step.exact_sum import ExactSum
from ft_collectives.step.machine import StepMachine
from recoverrun.worker.error_file import write_error_file
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Promise
from rendezvous.protocol.views import Identity
from rendezvous.protocol.worker_env import WorkerEnv

SERVED = ("ddp", "fsdp2")
"""Strategies that reduce every microbatch by itself, in home order, and divide after the sum."""


class ExactRefused(Exception):
    """`--exact` was asked for and cannot be given. The text says why."""


def require(env: WorkerEnv, strategy: Strategy) -> None:
    """All ranks are to be served: end the run if `--exact` cannot be given for this script."""
    if env.exact and strategy.name not in SERVED:
        refuse(env, f"not with {strategy.name} yet, only with {' and '.join(SERVED)}")


def exact_sum(machine: StepMachine, fabric: Fabric, channel: Channel) -> ExactSum:
    """The sum of gradients over `channel` with `--exact`."""

    def shares(generation: int) -> Mapping[int, tuple[Identity, ...]] | None:
        over = machine.view.generation != generation or machine.plan_is_stale
        return None if over else machine.shares()

    return ExactSum(fabric, channel, shares)


def gives_way(worker: WorkerState) -> bool:
    """True if `--exact` was asked for, and the run goes on where it cannot be given any more: a
    replica has come back.
    """
    return worker.env.exact and bool(worker.joined)


def end_if_unserved(worker: WorkerState, promise: Promise, reason: str) -> None:
    """A proof is over: end the run if it showed that `--exact` cannot be given."""
    env = worker.env
    if not env.exact or gives_way(worker):
        return
    if promise == "equal-count":  # unprotected: a loss ends the run anyway
        refuse(env, f"lost microbatches would be made up with other samples: {reason}")


def refuse(env: WorkerEnv, words: str) -> None:
    """End the run: `--exact` was asked for, and cannot be given."""
    sentence = f"--exact cannot be given: {words}"
    sys.stderr.write(f"recoverrun: {sentence}\n")
    if env.error_file:
        write_error_file(env.error_file, ExactRefused(sentence))
    raise SystemExit(ExitCode.USAGE)
