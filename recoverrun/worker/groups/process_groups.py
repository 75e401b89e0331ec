"""Putting an elastic group in the place of a native one, and back.

torch 2.13 cannot be told to build another kind of group under the name "gloo", and a Python
`Backend` cannot be made (no constructor). So the native group is built as ever, in
`distributed_c10d._new_process_group_helper`, and then wrapped; every table that knows it by object
or by name is brought up to date, so that the script, DeviceMesh, DDP and FSDP all meet the wrapper.
Groups inside one replica get their native group back once the replicas are known (`release`).

A group that is made later, across replicas, is never connected as a whole: a member may be lost, or
be lost while it connects, and gloo would wait for it. Its native half knows only this rank, and its
members meet as they do after any loss (`late`). So it is with a default group that is made again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import (
    HashStore,
    _register_process_group,
    _unregister_process_group,
)

from ft_collectives.communicators.c10d import ProcessGroupGloo
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.process_group.substitution_policy import SubstitutionPolicy
from recoverrun.worker.groups import device_support
from rendezvous.protocol.layout import Layout

Helper = Callable[..., tuple[Any, Any]]


def wrapping(original: Helper) -> Helper:
    """`_new_process_group_helper` whose gloo groups are elastic, and those over NCCL if asked."""

    def _new_process_group_helper(
        group_size: int,
        group_rank: int | None,
        global_ranks_in_group: Sequence[int],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        wanted = list(global_ranks_in_group)
        meant = wanted or [*range(group_size)]  # torch names nobody for the default group
        if _late and _late[0].spans(meant) and group_rank is not None and _asks_replaceable(args):
            return _alone(original, wanted, meant, group_rank, *args, **kwargs)
        group, store = original(group_size, group_rank, global_ranks_in_group, *args, **kwargs)
        member = group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER
        if not member or isinstance(group, ElasticGroup):
            return group, store
        if not is_gloo(group) and not device_support.may_be_replaced(group):
            return group, store
        ranks = list(global_ranks_in_group) or list(range(group_size))
        elastic = ElasticGroup(group, ranks)
        _replace(group, elastic)
        return elastic, store

    return _new_process_group_helper


@dataclass(frozen=True, slots=True)
class Late:
    """The rule for groups from now on: those over several replicas outlive losses."""

    fabric: Fabric
    layout: Layout
    policy: SubstitutionPolicy

    def spans(self, ranks: Sequence[int]) -> bool:
        return len({self.layout.slot(rank) for rank in ranks}) > 1


_late: list[Late] = []  # none before the replicas are known, then one


def late(fabric: Fabric, layout: Layout, policy: SubstitutionPolicy) -> None:
    """The replicas are known: from now on groups across them are protected, by this policy."""
    _late[:] = [Late(fabric, layout, policy)]


def store_barrier(original: Callable[..., None]) -> Callable[..., None]:
    """`_store_based_barrier`, at the end of `new_group`, which waits for lost ranks, too."""

    def wrapper(rank: int, store: Any, group_name: str, count: int, *args: Any, **kw: Any) -> None:
        world = c10d.GroupMember.WORLD
        if isinstance(world, ElasticGroup) and world.protected and count == world.size():
            world.barrier()
        else:
            original(rank, store, group_name, count, *args, **kw)

    return wrapper


def _asks_replaceable(args: Sequence[Any]) -> bool:
    backend = str(args[0]).lower() if args else ""
    return backend == "gloo" or device_support.makes_replaceable(backend)


def _alone(
    original: Helper,
    wanted: list[int],
    ranks: list[int],
    place: int,
    backend: Any,
    store: Any,
    *args: Any,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """A group of `ranks` whose native half is this rank's alone; the default one is `wanted` of
    nobody.
    """
    mine = [ranks[place]] if wanted else []
    native, made = original(1, 0, mine, backend, HashStore(), *args, **kwargs)
    elastic = ElasticGroup(native, ranks, place)
    _replace(native, elastic)
    if not wanted:  # groups inside the replica meet in the store of the default one
        table: Any = c10d._world.pg_map
        table[elastic] = (table[elastic][0], store)
    elastic.protect(_late[0].fabric, _late[0].policy, connected=False)
    return elastic, made


def several() -> bool:
    """True if the script has put several ranks together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def release(layout: Layout) -> None:
    """Give the groups inside one replica their native communicator back: they are rigid."""
    for group in list(ElasticGroup.instances):
        if len({layout.slot(rank) for rank in group.ranks}) == 1:
            _replace(group, group.native, held=True)


def is_gloo(group: Any) -> bool:
    """True if the communicator of this group can be replaced for a generation.

    `init_process_group("gloo")` registers one gloo backend for every kind of device.
    """
    backends = [group._get_backend(device) for device in group._device_types]
    return bool(backends) and all(isinstance(one, ProcessGroupGloo) for one in backends)


def _replace(old: Any, new: Any, held: bool = False) -> None:
    """Replace a group; with `held` torch goes on to know the old one, too: the script or FSDP may
    have kept it.
    """
    world: Any = c10d._world
    if c10d.GroupMember.WORLD is old:
        c10d.GroupMember.WORLD = new
    for table in (
        world.pg_map,
        world.pg_names,
        world.pg_backend_config,
        world.pg_to_tag,
        world.pg_group_ranks,
    ):
        if old in table:
            table[new] = table[old] if held else table.pop(old)
    for groups in world.tags_to_pg.values():
        for number, group in enumerate(groups):
            if group is old:
                groups[number] = new
    _unregister_process_group(old.group_name)
    _register_process_group(old.group_name, new)
