"""Ranks of one replica, met again by their forked children (`forked_child`).

A proof that executes more than a rank can do alone needs the other shards. gloo's threads are not
in a child, so nothing that its parent has connected answers there. The children connect anew, by a
store that their parents relay, and put what they connected behind the groups that torch, FSDP and
DTensor hold: a `ProcessGroup` asks its backend of a device each time
(torch/csrc/distributed/c10d/ProcessGroup.hpp, `setBackend`).
"""

import dataclasses
from datetime import timedelta
from typing import Any

import torch

from ft_collectives.communicators.c10d import CUSTOM, PrefixStore, connect
from ft_collectives.communicators.launcher_store import Call, LauncherStore
from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.groups.process_groups import is_gloo
from recoverrun.worker.verification.forked_child import Ask
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall

TALK = (
    "allgather", "all_gather", "allreduce", "alltoall", "all_to_all", "barrier", "broadcast",
    "gather", "monitored_barrier", "recv", "reduce", "scatter", "send",
)  # fmt: skip
"""How calls of a process group begin that need the other ranks."""


class NeedsMates(NotReplayable):
    """The executed code talks to the other ranks of its replica before data enter the model."""


class _Alone:
    """A native group of which nobody else is here."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        return _refuse if name.lstrip("_").startswith(TALK) else getattr(self._native, name)


def _refuse(*_: Any, **__: Any) -> None:
    raise NeedsMates("it talks to other ranks of its replica before data enter the model")


def part(groups: list[ElasticGroup]) -> None:
    """Part with these ranks, in a child that is alone: whoever talks to them hears of it, and does
    not wait.
    """
    for group in groups:
        group.native = _Alone(group.native)


def inside(layout: Layout) -> list[ElasticGroup]:
    """Groups of ranks of this one's replica, in the order in which all have made them.

    Those of one rank are among them: its collectives, too, are the business of gloo's threads.
    """
    return [
        group
        for group in ElasticGroup.instances
        if len({layout.slot(rank) for rank in group.ranks}) == 1
    ]


def can_meet(groups: list[ElasticGroup]) -> bool:
    """False if they talk from device to device, which no child may touch."""
    return all(is_gloo(group.native) for group in groups) and not torch.cuda.is_initialized()


def meet(
    groups: list[ElasticGroup], ask: Ask, *, rank: int, generation: int, place: str, within_s: float
) -> None:
    """Meet in the child: blocks until those of all members are there. Raises what gloo does."""
    limit = timedelta(seconds=within_s)
    store = LauncherStore(asking(ask), rank=rank, generation=generation, timeout=limit)
    for group in groups:
        name = f"{place}/{group.native.group_name}/{group.ranks[0]}/"
        own = group.ranks.index(rank)
        prefixed = PrefixStore(name, store)
        made = connect(prefixed, own, len(group.ranks), timeout=limit, devices=())
        for device in group.native._device_types:
            group.native._register_backend(device, CUSTOM, made)


def asking(ask: Ask) -> Call:
    """Calls of a store that somebody else makes."""

    def call(wanted: StoreCall) -> StoreAnswer:
        said = ask(dataclasses.asdict(wanted))
        return StoreAnswer(**{**said, "values": tuple(said["values"])})

    return call


def relaying(call: Call) -> Ask:
    """Make the calls of the children, in the parent."""

    def answer(said: dict[str, Any]) -> dict[str, Any]:
        keys, values = tuple(said["keys"]), tuple(said["values"])
        return dataclasses.asdict(call(StoreCall(**{**said, "keys": keys, "values": values})))

    return answer
