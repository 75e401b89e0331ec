"""The end of the first transaction: communicators are made, and gradients are ours from then on."""

import time
from typing import TYPE_CHECKING, Never

from ft_collectives.communicators.c10d import GroupMember
from ft_collectives.communicators.fabric import HINT_AGAIN_S, Fabric
from ft_collectives.communicators.limits import TimeLimits, limit_of
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.process_group.substitution_policy import SubstitutionPolicy
from ft_collectives.step.machine import StepMachine
from ft_collectives.step.step_events import (
    Send,
)
from recoverrun.worker.groups import process_groups
from recoverrun.worker.replay.lost_operands import Operands

if TYPE_CHECKING:
    from recoverrun.worker.step.driver import Session

RESTART_WITHIN_S = 60.0
"""How long a rank waits to be started again where another one was lost before all could serve."""

LOST_FIRST = "a rank was lost as protection began, and this one was not started again"


def connect(session: "Session") -> Fabric:
    """What carries collectives from now on."""
    assert session.layout is not None, "served"
    with session.changed:
        assert session.view is not None, "seen as the script was served"
        session.fabric = Fabric(
            rank=session.env.rank,
            view=session.view,
            store=session.store,
            changed=session.changed,
            limits=TimeLimits(lambda: limit_of(GroupMember.WORLD), session.voice.overdue),
            on_hint=session.voice.peer_fault,
        )
    return session.fabric


def take_over(session: "Session", fabric: Fabric, microbatches: int) -> None:
    """Groups across replicas and gradients are ours from now on."""
    layout, strategy = session.layout, session.strategy
    assert layout is not None and strategy is not None, "served"
    with session.changed:
        assert session.view is not None, "connected"
        machine = StepMachine(rank=session.env.rank, layout=layout, view=session.view)
        session.machine = machine
    operands = Operands(session)
    policy = SubstitutionPolicy(
        replaying=lambda: session.acting,
        result_alone=session.impersonator.unheard,
        on_exchange=session.runtime.hears,
        find_lost_inputs=operands.find,
        on_partial=operands.partial,
    )
    process_groups.release(layout)
    for group in list(ElasticGroup.instances):
        if len({layout.slot(rank) for rank in group.ranks}) > 1:
            group.protect(fabric, policy)
    process_groups.late(fabric, layout, policy)
    strategy.protect()
    session.impersonator.serve(strategy, layout)
    for effect in machine.reduced_by_torch(microbatches):
        assert isinstance(effect, Send), f"nothing is left to do: {effect}"
        session.link.send(effect.message)


def await_restart(session: "Session") -> Never:
    """A rank was lost before all could serve: all are started again."""
    until = time.monotonic() + RESTART_WITHIN_S
    while time.monotonic() < until:
        session.voice.peer_fault(session.generation, LOST_FIRST)
        with session.changed:
            session.changed.wait_for(lambda: False, timeout=HINT_AGAIN_S)
    raise RuntimeError(LOST_FIRST)
