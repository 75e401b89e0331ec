"""Scatters of the script from a rank 0 that is lost: its deputy sends what it made in its place.

    if rank == 0:
        shards = deal(torch.randperm(size))
    dist.scatter_object_list(mine, shards if rank == 0 else None, src=0)

The deputy executes the first lines in the place of rank 0 (`rank0_transformer`). Within the call
the survivors agree whether it has; if not, the call raises PeerLost on all of them.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from ft_collectives.communicators.c10d import options
from ft_collectives.communicators.errors import PeerLost
from ft_collectives.communicators.script_modes import caller_of
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.process_group.substitutes import ObjectCallSite, requiring_roots
from recoverrun.worker.rank0.broadcasts import Broadcasts, called, is_torch_itself
from recoverrun.worker.step.worker_state import WorkerState

GRADIENTS = "torch.distributed.nn.functional"
"""Makes an all_to_all of scatters where a backend has none."""


class Scatters:
    """Wraps `dist.scatter` and `dist.scatter_object_list`."""

    def __init__(self, worker: WorkerState, broadcasts: Broadcasts) -> None:
        self._worker = worker
        self._broadcasts = broadcasts

    def tensors(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `dist.scatter`. In torch's gradients of collectives a lost rank sends 0."""
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            caller = caller_of(sys._getframe(1))
            if caller.f_globals.get("__name__") == GRADIENTS:
                try:
                    return original(*args, **kwargs)
                except PeerLost:
                    (args[0] if args else kwargs["tensor"]).zero_()
                    return None
            group, root = called(signature, args, kwargs)
            if group is None or not group.protected or is_torch_itself(caller):
                return original(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            site = ObjectCallSite()
            parts = self._parts(given.get("scatter_list"), caller, group, root)
            site.call(parts is not None)
            with requiring_roots(site):
                if parts is None:
                    result = original(*args, **kwargs)
                else:
                    work = _scatter(given["tensor"], parts, group, root)
                    result = work if given.get("async_op") else None
            self._broadcasts.tell_substitute(site, caller, group, root)
            return result

        return wrapper

    def objects(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            group, root = called(signature, args, kwargs)
            if group is None or not group.protected or group.rank() == root:
                return original(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            out, caller = given["scatter_object_output_list"], sys._getframe(1)
            if not isinstance(out, list) or not out:
                return original(*args, **kwargs)  # torch's exception
            site = ObjectCallSite()
            parts = self._parts(given.get("scatter_object_input_list"), caller, group, root)
            site.call(parts is not None)
            with requiring_roots(site):
                out[0] = _object(parts, group, root)
            self._broadcasts.tell_substitute(site, caller, group, root)
            return None

        return wrapper

    def _parts(
        self, own: Any, caller: FrameType, group: ElasticGroup, root: int
    ) -> Sequence[Any] | None:
        """The parts that this rank sends as the deputy of rank 0; None if it is not, or has none.

        Parts that stand in the call itself were made just before it (`Rank0Gate.bring`).
        """
        brought = self._worker.runtime.gate.taken()
        if not own:
            return brought if self._broadcasts.is_heard(group, root) else None
        return own if self._broadcasts.does(caller, own, group, root) else None


def _scatter(
    out: torch.Tensor, parts: Sequence[torch.Tensor] | None, group: ElasticGroup, root: int
) -> Any:
    inputs = [] if parts is None else [list(parts)]
    return group.scatter([out], inputs, options("ScatterOptions", rootRank=root))


def _object(parts: Sequence[Any] | None, group: ElasticGroup, root: int) -> Any:
    """Send and receive as the root does (torch/distributed/distributed_c10d.py,
    `scatter_object_list`).
    """
    device = c10d._get_object_coll_device(group)
    largest, mine = (torch.zeros(1, dtype=torch.long, device=device) for _ in range(2))
    contents: Sequence[torch.Tensor] | None = None
    sizes: Sequence[torch.Tensor] | None = None
    if parts is not None:
        contents, sizes = zip(
            *[c10d._object_to_tensor(one, device, group) for one in parts], strict=True
        )
        largest = max(sizes).clone()
        for one in contents:
            one.resize_(int(largest.item()))
    group.broadcast([largest], options("BroadcastOptions", rootRank=root))
    out = torch.empty(int(largest.item()), dtype=torch.uint8, device=device)
    _scatter(out, contents, group, root)
    _scatter(mine, sizes, group, root)
    return c10d._tensor_to_object(out, mine, group)
