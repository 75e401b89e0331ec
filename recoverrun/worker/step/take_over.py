"""The end of the first transaction: communicators are made, and gradients are ours from then on."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Never, Protocol

from ft_collectives.communicators.c10d import GroupMember
from ft_collectives.communicators.channel import Channel
from ft_collectives.communicators.fabric import HINT_AGAIN_S, Fabric
from ft_collectives.communicators.limits import TimeLimits, limit_of
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.process_group.substitution_policy import SubstitutionPolicy
from ft_collectives.step.machine import StepMachine
from ft_collectives.step.step_events import Send, Viewed
from ft_collectives.step.vote import VoteGroup
from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.changed_in_place import IN_PLACE
from recoverrun.worker.context.module_state import TORCHS, has_own_code
from recoverrun.worker.context.namespaces import module_paths, modules_in
from recoverrun.worker.groups import process_groups
from recoverrun.worker.step.control_thread import Control
from recoverrun.worker.step.held_exceptions import HELD
from recoverrun.worker.step.interfaces import Learns, Replayer, Returns
from recoverrun.worker.step.protection import Protection
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from rendezvous.protocol.layout import Layout

RESTART_WITHIN_S = 60.0
"""How long a rank waits to be started again where another one was lost before all could serve."""

LOST_FIRST = "a rank was lost as protection began, and this one was not started again"


class PlaceTaker(Learns, Protocol):
    """The driver, as it is used in a process that takes a lost rank's place."""

    control: Control
    policy: SubstitutionPolicy
    unannounced: Strategy | None  # serves a script that wraps no model, once it has seen a step

    def return_by(self, returns: Returns) -> None:
        """Lost ranks take part again by way of `returns` from now on."""

    def begin_transaction(self) -> None:
        """Begin the present transaction, of which nothing is done."""


def training_begins(runtime: ScriptRuntime) -> None:
    """The model's first forward begins: from here on the script's changes of modules are noted."""
    if not ATTACHED.training and (top := runtime.top_around()) is not None:
        names = {**top.globals, **top.names}
        modules = modules_in(names, runtime.own_modules)
        ATTACHED.know(module_paths(names, runtime.own_modules))
        IN_PLACE.watch(filter(has_own_code, modules), TORCHS)
        ATTACHED.ask(IN_PLACE.before)
    ATTACHED.training = True


def connect(worker: WorkerState) -> Fabric:
    """Make what carries collectives from now on."""
    with worker.changed:
        assert worker.view is not None, "seen as the script was served"
        fabric = Fabric(
            rank=worker.env.rank,
            view=worker.view,
            store=worker.store,
            changed=worker.changed,
            limits=TimeLimits(lambda: limit_of(GroupMember.WORLD), worker.reporter.overdue),
            on_hint=partial(_tell_fault, worker),
            progress=worker.progress,
        )
        worker.connect(fabric)  # in the same breath: views that come later are told to it
    return fabric


def _tell_fault(worker: WorkerState, generation: int, words: str) -> None:
    worker.reporter.peer_fault(generation, words)
    HELD.let_go()  # Nobody may come any more: all end, say, and the script's handler wants to.


def channels_of(rank: int, layout: Layout, fabric: Fabric) -> tuple[Channel, Channel]:
    """Open the channels to the ranks that hold the same part of the model, and to shard mates."""
    slot, shard = layout.place(rank)
    same = [replica[shard] for replica in layout.replicas]
    peers = fabric.open(f"slots{shard}", same, what="the exchange between replicas")
    mates = layout.replicas[slot]
    return peers, fabric.open("replica", mates, what="the exchange within the replica")


def take_over(
    worker: WorkerState,
    vote_group: VoteGroup,
    microbatches: int,
    replayer: Replayer,
    policy: SubstitutionPolicy,
) -> None:
    """Make groups across replicas and gradients ours from now on."""
    layout, strategy, fabric = worker.layout, worker.strategy, worker.fabric
    assert layout is not None and strategy is not None and fabric is not None, "served"
    peers, mates = channels_of(worker.env.rank, layout, fabric)
    with worker.changed:
        assert worker.view is not None, "connected"
        machine = StepMachine(rank=worker.env.rank, layout=layout, view=worker.view)
        worker.protect(
            Protection(
                layout=layout,
                strategy=strategy,
                machine=machine,
                fabric=fabric,
                vote_group=vote_group,
                peers=peers,
                mates=mates,
            )
        )
    process_groups.release(layout)
    for group in list(ElasticGroup.instances):
        if len({layout.slot(rank) for rank in group.ranks}) > 1:
            group.protect(fabric, policy)
    process_groups.late(fabric, layout, policy)
    strategy.protect()
    replayer.serve(strategy)
    training_begins(worker.runtime)  # where no forward was seen
    for effect in machine.reduced_by_torch(microbatches):
        assert isinstance(effect, Send), f"nothing is left to do: {effect}"
        worker.link.send(effect.message)


def take_place(
    worker: WorkerState,
    protection: Protection,
    plan: list[Any],
    replayer: Replayer,
    policy: SubstitutionPolicy,
) -> None:
    """Take a lost rank's place at the top of a step: gradients are ours from now on, divided as in
    `plan`. Nobody is met before `join`.
    """
    worker.protect(protection)
    process_groups.release(protection.layout)
    process_groups.late(protection.fabric, protection.layout, policy)
    protection.strategy.adopt(plan)
    replayer.serve(protection.strategy)
    ATTACHED.training = True


def join(worker: WorkerState, control: Control, channels: Sequence[str]) -> None:
    """Meet the others over these channels, in their order. Raises ValueError if ours differ."""
    fabric, place = worker.protection.fabric, worker.place
    assert place is not None, "given a place"
    fabric.arrange(channels)
    with worker.changed:
        worker.connect(fabric)  # in the same breath: views that come later are told to it
        newest = worker.view
    fabric.change(place)
    if newest is not None and newest.generation > place.generation:
        control.feed(Viewed(view=newest))
        fabric.change(newest)


def await_restart(worker: WorkerState) -> Never:
    """A rank was lost before all could serve: all are started again."""
    until = time.monotonic() + RESTART_WITHIN_S
    while time.monotonic() < until:
        worker.reporter.peer_fault(worker.generation, LOST_FIRST)
        with worker.changed:
            worker.changed.wait_for(lambda: False, timeout=HINT_AGAIN_S)
    raise RuntimeError(LOST_FIRST)
