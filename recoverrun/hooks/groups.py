"""Putting an elastic group in the place of a native one, and back.

torch 2.13 cannot be told to build another kind of group under the name "gloo", and a Python
`Backend` cannot be made (no constructor). So the native group is built as ever, in
`distributed_c10d._new_process_group_helper`, and then wrapped; every table that knows it by object
or by name is brought up to date, so that the script, DeviceMesh, DDP and FSDP all meet the wrapper.
Groups inside one replica get their native group back once the replicas are known (`release`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group

from ft_collectives.c10d import ProcessGroupGloo
from ft_collectives.elastic import ElasticGroup
from recoverrun.hooks import accelerator
from rendezvous.layout import Layout

Helper = Callable[..., tuple[Any, Any]]


def wrapping(original: Helper) -> Helper:
    """`_new_process_group_helper` whose gloo groups are elastic, and those over NCCL if asked."""

    def _new_process_group_helper(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: Sequence[int],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        group, store = original(group_size, group_rank, global_ranks_in_group, *args, **kwargs)
        member = group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER
        if not member or isinstance(group, ElasticGroup):
            return group, store
        if not is_gloo(group) and not accelerator.may_be_replaced(group):
            return group, store
        ranks = list(global_ranks_in_group) or list(range(group_size))
        elastic = ElasticGroup(group, ranks)
        _replace(group, elastic)
        return elastic, store

    return _new_process_group_helper


def release(layout: Layout) -> None:
    """Give the groups inside one replica their native communicator back: they are rigid."""
    for group in list(ElasticGroup.instances):
        if len({layout.slot(rank) for rank in group.ranks}) == 1:
            _replace(group, group.native)


def is_gloo(group: Any) -> bool:
    """Can the communicator of this group be replaced for a generation?

    `init_process_group("gloo")` registers one gloo backend for every kind of device.
    """
    backends = [group._get_backend(device) for device in group._device_types]
    return bool(backends) and all(isinstance(one, ProcessGroupGloo) for one in backends)


def _replace(old: Any, new: Any) -> None:
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
            table[new] = table.pop(old)
    for groups in world.tags_to_pg.values():
        for number, group in enumerate(groups):
            if group is old:
                groups[number] = new
    _unregister_process_group(old.group_name)
    _register_process_group(old.group_name, new)
