"""The end of the first transaction: communicators are made, and gradients are ours from then on."""

import time
from datetime import timedelta
from typing import Never

from ft_collectives.communicators.c10d import GroupMember
from ft_collectives.communicators.fabric import HINT_AGAIN_S, Fabric
from ft_collectives.communicators.limits import limit_of
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.step.machine import InStep, Send
from ft_collectives.step.vote import Booth
from recoverrun.worker.groups import process_groups
from recoverrun.worker.step.interfaces import MakesUp, Replayer
from recoverrun.worker.step.protection import Protection
from recoverrun.worker.step.worker_state import WorkerState

RESTART_WITHIN_S = 60.0
"""How long a rank waits to be started again where another one was lost before all could serve."""

LOST_FIRST = "a rank was lost as protection began, and this one was not started again"


def connect(worker: WorkerState) -> Fabric:
    """Make what carries collectives from now on."""
    with worker.changed:
        assert worker.view is not None, "seen as the script was served"
        fabric = Fabric(
            rank=worker.env.rank,
            view=worker.view,
            store=worker.store,
            changed=worker.changed,
            timeout=timedelta(minutes=30),
            on_hint=worker.voice.peer_fault,
        )
        fabric.patience.limit = lambda: limit_of(GroupMember.WORLD)
        fabric.patience.on_end = worker.voice.overdue
        worker.connect(fabric)  # in the same breath: views that come later are told to it
    return fabric


def take_over(
    worker: WorkerState, booth: Booth, microbatches: int, replayer: Replayer, make_up: MakesUp
) -> None:
    """Make groups across replicas and gradients ours from now on."""
    layout, strategy, fabric = worker.layout, worker.strategy, worker.fabric
    assert layout is not None and strategy is not None and fabric is not None, "served"
    _, shard = layout.place(worker.env.rank)
    peers = fabric.open(f"slots{shard}", [replica[shard] for replica in layout.replicas])
    with worker.changed:
        assert worker.view is not None, "connected"
        machine = InStep(rank=worker.env.rank, layout=layout, view=worker.view)
        worker.protect(
            Protection(
                layout=layout,
                strategy=strategy,
                machine=machine,
                fabric=fabric,
                booth=booth,
                peers=peers,
            )
        )
    ElasticGroup.alone = staticmethod(lambda: worker.acting)
    ElasticGroup.unheard = staticmethod(replayer.unheard)
    ElasticGroup.heard = staticmethod(worker.runtime.hears)
    ElasticGroup.lend = staticmethod(make_up.lend)
    ElasticGroup.partial = staticmethod(make_up.partial)
    process_groups.release(layout)
    for group in list(ElasticGroup.instances):
        if len({layout.slot(rank) for rank in group.ranks}) > 1:
            group.protect(fabric)
    process_groups.late(fabric, layout)
    strategy.protect()
    replayer.serve(strategy)
    for effect in machine.reduced_by_torch(microbatches):
        assert isinstance(effect, Send), f"nothing is left to do: {effect}"
        worker.link.send(effect.message)


def await_restart(worker: WorkerState) -> Never:
    """A rank was lost before all could serve: all are started again."""
    until = time.monotonic() + RESTART_WITHIN_S
    while time.monotonic() < until:
        worker.voice.peer_fault(worker.generation, LOST_FIRST)
        with worker.changed:
            worker.changed.wait_for(lambda: False, timeout=HINT_AGAIN_S)
    raise RuntimeError(LOST_FIRST)
