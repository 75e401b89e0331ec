"""FSDP2 over (replicate, shard), HSDP, and `replicate` of the same make, which does not shard.

Where the mesh is a part of a larger one, ranks that differ in the places of its other dimensions
(tensor, context, pipeline parallelism) are shards of one replica, too.

torch reduces a parameter group's gradient in `foreach_reduce`: reduce-scatter inside the replica,
then all-reduce across replicas (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). Here the
first half runs as it is; its result, the un-reduced sharded gradient, is added to an accumulator of
ours, and the second half is the reducer's. Gradients are written as the backward ends, with the
divisors that torch would have used for the original mesh.
"""

import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.step.reducer import Bucket, Reducer
from recoverrun.worker.groups import device_support
from recoverrun.worker.groups.topology import layout_of_mesh, layout_over
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.step.strategy import Sharding
from recoverrun.worker.strategies.fsdp2_shards import (
    ARGUMENTS,
    Shapes,
    Shards,
    crc_of_call,
    crc_of_waiting,
    made_for,
    named_parameters,
    switches_of,
)


class Fsdp2(Sharding):
    """Serves every parameter group of the script's FSDP2 modules."""

    name = "fsdp2"
    early = True
    terms = unlike = ""
    alone = False  # a forward pass needs the other shards

    def __init__(self, host: StrategyHost) -> None:
        self._host = host
        self._shards: dict[int, Shards] = {}
        self._reducer: Reducer | None = None
        self.synced = False  # torch reduces across replicas in the present backward
        self._asked: bool | None = False  # see `Strategy.asked_to_reduce`
        self._modules: list[torch.nn.Module] = []
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()  # parameter groups of torch's
        self.switches = partial(switches_of, self._groups)
        self._shown = 0  # of what this rank has given to reductions, in the present backward

    # --------------------------------------------------------------------------- hooks

    def fully_shard(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`fully_shard` that learns the topology from its mesh."""

        def wrapper(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._learn(sharded=True, **kwargs)
            return self._take(original(module, *args, **kwargs))

        wrapper.__dict__.update(vars(original))  # `@contract` keeps its state on the function
        return wrapper

    def replicate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`replicate` of torch's `replicate_with_fsdp`: parameter groups that are not sharded."""

        def wrapper(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._learn(sharded=False, **kwargs)
            return self._take(original(module, *args, **kwargs))

        wrapper.__dict__.update(vars(original))
        return wrapper

    def _take(self, module: Any) -> Any:
        self._modules += module if isinstance(module, list) else [module]
        return module

    def foreach_reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`foreach_reduce` that stops before the all-reduce and keeps the accumulator."""
        known = tuple(inspect.signature(original).parameters)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            call = dict(zip(known, args, strict=False)) | kwargs
            if not self._serves() or call["all_reduce_group"] is None:
                return original(*args, **kwargs)
            self._host.bucket_reached()
            if self._host.replayer.compares:
                self._shown ^= crc_of_call(call)
            self.synced |= bool(call["all_reduce_grads"]) and not self._host.worker.acting
            if self._reducer is None:
                return original(*args, **kwargs)
            return self._reduce(original, call, self._reducer)

        return wrapper if known == ARGUMENTS else self._unknown(original)

    def post_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`FSDPParamGroup.post_backward` that reduces every re-executed microbatch by itself."""

        def wrapper(group: Any, *unused: Any) -> Any:
            host = self._host
            self._groups.add(group)
            reduces = group.reduce_grads and group.all_reduce_grads
            self._asked = None if host.in_schedule else bool(self._asked) or reduces
            each = (host.worker.acting or host.worker.env.exact) and not host.in_schedule
            if not (self._serves() and each) or group.reduce_grads or self._reducer is None:
                return original(group, *unused)
            group.reduce_grads = True
            try:
                return original(group, *unused)
            finally:
                group.reduce_grads = False

        return wrapper

    def pre_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`FSDPState._pre_forward`, to know when the root's forward begins in training."""

        def wrapper(state: Any, module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            known = state._is_root is not None  # else it becomes known in its first forward
            if known:
                self._enters(state, (*args, kwargs))  # before anything is gathered
            begun = original(state, module, *args, **kwargs)
            if not known:
                self._enters(state, (*args, kwargs))
            return begun

        return wrapper

    def _enters(self, state: Any, values: tuple[Any, ...]) -> None:
        if state._is_root and torch.is_grad_enabled() and not self._host.in_schedule:
            self._host.forward_begins(values)

    def _unknown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self._host.worker.refuse(
            f"FSDP2 of torch {torch.__version__} reduces gradients in a way not known here"
        )
        return original

    # --------------------------------------------------------------------------- topology

    def _serves(self) -> bool:
        host = self._host
        return host.worker.strategy is self and host.worker.runtime.active

    def _learn(self, sharded: bool, mesh: Any = None, dp_mesh_dims: Any = None, **_: Any) -> None:
        """Learn the replicas from the arguments of `fully_shard`, or of `replicate`, which are not
        `sharded`.
        """
        host = self._host
        if host.worker.strategy not in (None, self) or host.worker.refusal:
            return
        replicated = not sharded or (mesh is not None and mesh.ndim > 1)
        if dp_mesh_dims is not None:
            replicated, sharded = bool(dp_mesh_dims.replicate_names), bool(dp_mesh_dims.shard_names)
            mesh = mesh[(*dp_mesh_dims.replicate_names, *dp_mesh_dims.shard_names)]
        if not replicated:
            host.worker.roll_back(
                "fully_shard without a replicate dimension: one replica of the model"
            )
            return
        if mesh is None:
            layout = layout_over(dist.group.WORLD)
        else:
            layout = layout_of_mesh(dist.get_world_size(), mesh, sharded)
        if layout is None:
            host.worker.refuse(
                f"FSDP2 on a mesh of shape {tuple(mesh.shape)} is not served: only over "
                "(replicate, shard), where such meshes make up the whole world"
            )
            return
        device = "cpu" if mesh is None else mesh.device_type
        if device != "cpu":
            host.worker.refuse(f"FSDP2 on {device} is not served yet, only on the CPU")
            return
        device_support.settle_autograd()
        host.serve(self, layout, None)

    # --------------------------------------------------------------------------- reduction

    def _reduce(self, original: Callable[..., Any], call: dict[str, Any], reducer: Reducer) -> Any:
        key = id(call["fsdp_params"][0])
        shapes = Shapes.of(call)
        partial = dict(
            call, all_reduce_grads=False, partial_reduce_output=None, all_reduce_hook=None
        )
        result = original(**partial)
        shards = self._group(key, call, shapes, result[-1].numel(), reducer)
        for gradient in (call["partial_reduce_output"], result[-1]):
            if gradient is not None and shards.accumulator is None:
                shards.accumulator = gradient
            elif gradient is not None:
                shards.accumulator += gradient
        if call["all_reduce_grads"] and not self._host.worker.acting:
            reducer.include([key])
            if generation := self._host.final_in():
                reducer.offer(key, generation)
        return (*result[:-1], None)

    def _group(
        self, key: int, call: dict[str, Any], shapes: Shapes, numel: int, reducer: Reducer
    ) -> Shards:
        """The accumulator of these parameters, made at their first backward."""
        known = self._shards.get(key)
        if known is not None and known.unsharded_sizes == shapes.sizes:
            known.hook = call["all_reduce_hook"]
            return known
        self._shards[key] = shards = made_for(call, shapes)
        reducer.register(
            Bucket(
                key=key,
                size=numel,
                dtype=shapes.dtype,
                fill=shards.fill,
                deliver=shards.deliver,
                keeps=True,
            )
        )
        return shards

    # --------------------------------------------------------------------------- Strategy

    def protect(self) -> None:
        """Gradients are ours to reduce from now on."""
        self._reducer = self._host.new_reducer()

    def backward_begins(self) -> None:
        self.synced, self._shown = False, 0

    def backward_done(self) -> None:
        """`foreach_reduce` has told."""

    def asked_to_reduce(self) -> bool | None:
        asked, self._asked = self._asked, False
        return asked

    def digest(self) -> int:
        """The digest of unsharded gradients: those that were reduced, and those that wait."""
        return self._shown ^ crc_of_waiting(self._groups)

    def reducers(self) -> list[Reducer]:
        return [self._reducer] if self._reducer is not None else []

    def accumulators(self) -> list[torch.Tensor]:
        return [s.accumulator for s in self._shards.values() if s.accumulator is not None]

    def set_aside(self) -> object:
        self._shown = 0
        return [(shards, shards.set_aside()) for shards in self._shards.values()]

    def clear(self) -> None:
        self._shown = 0
        for shards in self._shards.values():
            shards.set_aside()

    def put_back(self, kept: object) -> None:
        assert isinstance(kept, list), "what set_aside returned"
        # Those of a group that the script has frozen in part have parameters in common.
        for shards, what in reversed(kept):
            shards.put_back(what)

    def parameters(self) -> dict[str, torch.Tensor]:
        named = {}
        for place, root in enumerate(self.roots()):
            prefix = f"{place}." if place else ""  # stages of a pipeline
            named.update({f"{prefix}{name}": param for name, param in named_parameters(root)})
        return {
            name: param.to_local() if hasattr(param, "to_local") else param.detach()
            for name, param in named.items()
        }

    def roots(self) -> list[torch.nn.Module]:
        """Those that are in no other: one model, or the stages of a pipeline on this rank."""
        within = {
            id(one) for module in self._modules for one in module.modules() if one is not module
        }
        return [module for module in self._modules if id(module) not in within]
