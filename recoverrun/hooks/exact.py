"""`--exact`: parameters and optimizer state are those of the run without losses, bit for bit.

Three things make that so. A microbatch that is executed again gives its gradient bit for bit, as
the rehearsal of the first step shows. A lost slot's gradients never enter the accumulators of the
rank that computes them: they are kept apart, by slot and index (`apart`). And all are added up in
an order that knows slots and indices only (`ft_collectives.canonical`).

Where one of these does not hold, the run ends before its first optimizer step with a sentence, or
before its second, where only that shows it (`crossing`).
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ft_collectives.canonical import Canonical
from recoverrun.hooks import tracebacks
from rendezvous.messages import Identity, Promise

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

SERVED = ("ddp", "fsdp2")
"""Strategies that reduce every microbatch by itself, in home order, and divide after the sum."""

USAGE_CODE = 2


class ExactRefused(Exception):
    """What was asked for with `--exact` cannot be given. The text says why."""


def enter(session: "Session") -> None:
    """The session is about to serve its strategy: sum in canonical order from now on."""
    fabric, reducer = session.fabric, session.reducer
    if not session.env.exact:
        return
    assert fabric is not None and reducer is not None, "protected"

    def shares(generation: int) -> Mapping[int, tuple[Identity, ...]] | None:
        machine = session.machine
        assert machine is not None, "protected"
        over = machine.view.generation != generation or machine.surprised
        return None if over else machine.shares()

    reducer.canonical = Canonical(fabric, reducer.channel, shares)


def insist(session: "Session", promise: Promise, reason: str) -> None:
    """The rehearsal is over: end the run if it showed that `--exact` cannot be given."""
    shape, strategy = session.runtime.shape, session.strategy
    if not session.env.exact or promise == "unprotected":
        return  # a loss then ends the run: nothing can differ
    assert shape is not None and strategy is not None, "protected"
    if strategy.name not in SERVED:
        refuse(session, f"not with {strategy.name} yet, only with {' and '.join(SERVED)}")
    if shape.backwards > 1:
        refuse(session, f"a microbatch at {shape.region.id} has {shape.backwards} backward passes")
    if session.tallies.keys:
        refuse(session, "the script divides its gradients by what the ranks tell each other")
    if promise != "exact-samples":
        refuse(session, f"lost microbatches would be made up with other samples: {reason}")


def refuse(session: "Session", words: str) -> None:
    """End the run: `--exact` was asked for, and cannot be given."""
    sentence = f"--exact cannot be given: {words}"
    print(f"recoverrun: {sentence}", file=sys.stderr)
    if session.env.error_file:
        tracebacks.write_error_file(session.env.error_file, ExactRefused(sentence))
    raise SystemExit(USAGE_CODE)


@contextmanager
def apart(session: "Session", identity: Identity) -> Iterator[None]:
    """Around the execution of another slot's microbatch: its gradient is kept by itself."""
    reducer, strategy = session.reducer, session.strategy
    assert reducer is not None and strategy is not None, "protected"
    if reducer.canonical is None:
        yield
        return
    kept = strategy.set_aside()
    reducer.held_back = True  # what backward completes now is not our own sum
    try:
        yield
        gradient = {}
        for bucket in reducer.buckets.values():
            gradient[bucket.key] = torch.empty(bucket.size, dtype=bucket.dtype)
            bucket.fill(gradient[bucket.key])
        reducer.canonical.add(identity, gradient)
    finally:
        reducer.held_back = False
        strategy.put_back(kept)
