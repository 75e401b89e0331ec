"""Gathers of the script to a rank 0 that is lost: its deputy gets what rank 0 would have got.

    if rank == 0:
        losses = [torch.zeros_like(loss) for _ in range(world)]
    dist.gather(loss, losses, dst=0)

The deputy executes the first lines in the place of rank 0 (`rank0_transformer`), and what follows
reads the list. torch refuses one on any other rank than the destination.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ft_collectives.communicators.c10d import options
from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.rank0 import failover
from recoverrun.worker.step.worker_state import WorkerState

Given = dict[str, Any]
"""The arguments of a call, by name."""


class Gathers:
    """Wraps `dist.gather` and `dist.gather_object`."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker

    def tensors(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return self._wrapped(original, "gather_list", _tensors)

    def objects(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return self._wrapped(original, "object_gather_list", _objects)

    def _wrapped(
        self, original: Callable[..., Any], into: str, gather: Callable[[Given], Any]
    ) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = _bound(signature, args, kwargs)
            if given is None or not self._collects(given, given.get(into)):
                return original(*args, **kwargs)
            return gather(given)

        return wrapper

    def _collects(self, given: Given, into: Any) -> bool:
        """True if this rank brought a list in the place of rank 0, the destination."""
        group, place = given["group"], given["group_dst"]
        if not into or not isinstance(group, ElasticGroup) or group.ranks[0]:
            return False
        at_first = place == 0 if place is not None else given["dst"] in (None, 0)
        return at_first and group.rank() > 0 and failover.is_deputy(self._worker)


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Given | None:
    """The arguments of a call, with its group; None where torch itself must answer."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    group = bound.arguments["group"] or dist.GroupMember.WORLD
    return {"async_op": False, **bound.arguments, "group": group}


def _gathered(tensor: torch.Tensor, slots: list[torch.Tensor], group: Any) -> Any:
    return group.gather([slots], [tensor], options("GatherOptions", rootRank=0))


def _tensors(given: Given) -> Any:
    work = _gathered(given["tensor"], given["gather_list"], given["group"])
    return work if given["async_op"] else None


def _objects(given: Given) -> None:
    """Receive as the destination does (torch/distributed/distributed_c10d.py, `gather_object`)."""
    said, into, group = given["obj"], given["object_gather_list"], given["group"]
    device = c10d._get_object_coll_device(group)
    mine, size = c10d._object_to_tensor(said, device, group)
    sizes = [torch.zeros_like(size) for _ in range(group.size())]
    dist.all_gather(sizes, size, group=group)
    most = int(max(sizes).item())
    mine.resize_(most)
    slots = [torch.empty_like(mine) for _ in sizes]
    _gathered(mine, slots, group)
    into[:] = [
        c10d._tensor_to_object(slot, one, group) for slot, one in zip(slots, sizes, strict=True)
    ]
