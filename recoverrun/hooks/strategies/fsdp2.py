"""FSDP2 over (replicate, shard), HSDP, and `replicate` of the same make, which does not shard.

Where the mesh is a part of a larger one, ranks that differ in the places of its other dimensions
(tensor, context, pipeline parallelism) are shards of one replica, too.

torch reduces a parameter group's gradient in `foreach_reduce`: reduce-scatter inside the replica,
then all-reduce across replicas (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). Here the
first half runs as it is; its result, the un-reduced sharded gradient, is added to an accumulator of
ours, and the second half is the reducer's. Gradients are written at the commit point, with the
divisors that torch would have used for the original mesh.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.reduce import Bucket
from recoverrun.hooks import groups
from recoverrun.hooks.blocks import layout_of_mesh, layout_over
from recoverrun.hooks.session import Session
from recoverrun.hooks.strategies.fsdp2_shards import Lending, Shards

ARGUMENTS = (
    "fsdp_params",
    "unsharded_grads",
    "reduce_scatter_group",
    "reduce_scatter_stream",
    "reduce_scatter_comm",
    "orig_dtype",
    "reduce_dtype",
    "device",
    "gradient_divide_factor",
    "all_reduce_group",
    "all_reduce_stream",
    "all_reduce_grads",
    "partial_reduce_output",
    "all_reduce_hook",
    "force_sum_reduction_for_comms",
)
"""Of `foreach_reduce` in torch 2.13; another torch is refused rather than guessed at."""


class Fsdp2:
    """Serves every parameter group of the script's FSDP2 modules."""

    name = "fsdp2"
    early = synced = True

    def __init__(self, session: Session) -> None:
        self._session = session
        self._shards: dict[int, Shards] = {}
        self.lender = Lending(self._shards)
        self._modules: list[torch.nn.Module] = []

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
            return self._reduce(original, call)

        return wrapper if known == ARGUMENTS else self._unknown(original)

    def post_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`FSDPParamGroup.post_backward` that reduces every re-executed microbatch by itself."""

        def wrapper(group: Any, *unused: Any) -> Any:
            session = self._session
            self.synced = group.reduce_grads
            each = session.acting or session.crossing.proving(session) or session.env.exact
            each = each and self.lender.parts == 1
            if not (self._serves() and each) or group.reduce_grads:
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
            begun = original(state, module, *args, **kwargs)
            if state._is_root and torch.is_grad_enabled():
                self._session.forward_begins()
            return begun

        return wrapper

    def _unknown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self._session.refuse(
            f"FSDP2 of torch {torch.__version__} reduces gradients in a way not known here"
        )
        return original

    # --------------------------------------------------------------------------- topology

    def _serves(self) -> bool:
        session = self._session
        served = session.machine is not None and session.strategy is self
        return served and session.runtime.active

    def _learn(self, sharded: bool, mesh: Any = None, dp_mesh_dims: Any = None, **_: Any) -> None:
        """From the arguments of `fully_shard`, or of `replicate`, which are not `sharded`."""
        session = self._session
        if session.strategy not in (None, self) or session.refusal:
            return
        replicated = not sharded or (mesh is not None and mesh.ndim > 1)
        if dp_mesh_dims is not None:
            replicated, sharded = bool(dp_mesh_dims.replicate_names), bool(dp_mesh_dims.shard_names)
            mesh = mesh[(*dp_mesh_dims.replicate_names, *dp_mesh_dims.shard_names)]
        if not replicated:
            session.refuse("fully_shard without a replicate dimension: one replica of the model")
            return
        if mesh is None:
            layout = layout_over(dist.group.WORLD)
        else:
            layout = layout_of_mesh(dist.get_world_size(), mesh, sharded)
        if layout is None:
            session.refuse(
                f"FSDP2 on a mesh of shape {tuple(mesh.shape)} is not served: only over "
                "(replicate, shard), where such meshes make up the whole world"
            )
            return
        device = "cpu" if mesh is None else mesh.device_type
        if device != "cpu":
            session.refuse(f"FSDP2 on {device} is not served yet, only on the CPU")
            return
        if session.strategy is None:
            groups.release(layout)
            session.protect(self, layout)
        elif layout != session.layout:
            session.refuse("FSDP2 replicates some parts of the model over other ranks than others")

    # --------------------------------------------------------------------------- reduction

    def _reduce(self, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        session = self._session
        session.backward_reaches_bucket()
        params, grads = list(call["fsdp_params"]), call["unsharded_grads"]
        sizes = tuple(grad.size() for grad in grads)
        dtype = call["reduce_dtype"] or grads[0].dtype
        hook = call["all_reduce_hook"]
        partial = dict(
            call, all_reduce_grads=False, partial_reduce_output=None, all_reduce_hook=None
        )
        result = original(**partial)
        shards = self._group(call, params, sizes, dtype, hook, result[-1].numel())
        if self.lender.divisor > 1:
            result[-1].div_(self.lender.divisor)
        if shards.accumulator is None:
            shards.accumulator = result[-1]
        else:
            shards.accumulator += result[-1]
        generation = session.last_in_sight()
        if generation and session.reducer is not None:
            session.reducer.offer(id(params[0]), generation)
        return (*result[:-1], None)

    def _group(
        self,
        call: dict[str, Any],
        params: list[Any],
        sizes: tuple[torch.Size, ...],
        dtype: torch.dtype,
        hook: Callable[[torch.Tensor], None] | None,
        numel: int,
    ) -> Shards:
        """The accumulator of these parameters, made at their first backward."""
        key = id(params[0])
        known = self._shards.get(key)
        if known is not None and known.unsharded_sizes == sizes:
            known.hook = hook
            return known
        average, post = _divisors(call, dtype)
        scatter = call["reduce_scatter_group"]
        shards = Shards(
            params=params,
            unsharded_sizes=sizes,
            shards=scatter.size() if scatter else 1,
            orig_dtype=call["orig_dtype"],
            average_over=average,
            post_divide=post,
            hook=hook,
        )
        self._shards[key] = shards
        assert self._session.reducer is not None, "protected"
        self._session.reducer.register(
            Bucket(
                key=key,
                size=numel,
                dtype=dtype,
                fill=shards.fill,
                deliver=shards.deliver,
                keeps=True,
            )
        )
        return shards

    # --------------------------------------------------------------------------- Strategy

    def owners(self) -> list[Any]:
        return [one.sharded_param for s in self._shards.values() for one in s.params]

    def accumulators(self) -> list[torch.Tensor]:
        return [s.accumulator for s in self._shards.values() if s.accumulator is not None]

    def set_aside(self) -> object:
        kept = {key: shards.accumulator for key, shards in self._shards.items()}
        for shards in self._shards.values():
            shards.accumulator = None
        return kept

    def put_back(self, kept: object) -> None:
        assert isinstance(kept, dict), "what set_aside returned"
        for key, accumulator in kept.items():
            self._shards[key].accumulator = accumulator

    def drop(self, params: Iterable[torch.Tensor]) -> bool:
        ours = set(map(id, self.owners()))
        if not ours <= {id(param) for param in params}:
            return False
        for shards in self._shards.values():
            shards.accumulator = None
        return True

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self._roots() for buffer in module.buffers()]

    def parameters(self) -> dict[str, torch.Tensor]:
        named = {}
        for place, root in enumerate(self._roots()):
            prefix = f"{place}." if place else ""  # stages of a pipeline
            named.update({f"{prefix}{name}": param for name, param in root.named_parameters()})
        return {
            name: param.to_local() if hasattr(param, "to_local") else param.detach()
            for name, param in named.items()
        }

    def _roots(self) -> list[torch.nn.Module]:
        """Those that are in no other: one model, or the stages of a pipeline on this rank."""
        within = {
            id(one) for module in self._modules for one in module.modules() if one is not module
        }
        return [module for module in self._modules if id(module) not in within]


def _divisors(call: dict[str, Any], dtype: torch.dtype) -> tuple[int, float | None]:
    """(replicas to average over, factor to divide by afterwards) for the original mesh."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

    group = call["all_reduce_group"]
    _, post, _, operation = _get_gradient_divide_factors(
        call["reduce_scatter_group"],
        group,
        dtype,
        call["device"].type,
        call["gradient_divide_factor"],
        call["force_sum_reduction_for_comms"],
    )
    average = operation == dist.ReduceOp.AVG
    return (group.size() if average else 1), post
