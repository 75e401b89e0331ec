"""FSDP1 with hybrid sharding: `FullyShardedDataParallel` with HYBRID_SHARD or _HYBRID_SHARD_ZERO2.

torch reduces the gradient of a flat parameter in `_reduce_grad`: reduce-scatter inside the replica,
then all-reduce across replicas (torch/distributed/fsdp/_runtime_utils.py). Told that its handle is
fully sharded, it leaves out the all-reduce, divides by the original numbers of shards and replicas
all the same, and adds the result to the sharded gradient. So that one, `flat_param.grad`, stays
this rank's own accumulator until the commit point, where the sum over all replicas is written to
it in place: with `use_orig_params` the gradients of the original parameters are views of it.

Under `no_sync` gradients are kept unsharded until the last microbatch: that is left as it is, but
re-executed microbatches, and those of the first step, are each reduced by themselves.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.reduce import Bucket
from recoverrun.hooks import groups
from recoverrun.hooks.blocks import layout_of
from recoverrun.hooks.session import Session

HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


@dataclass(slots=True, eq=False)
class Flat:
    """The sharded gradient of one flat parameter."""

    param: Any

    @property
    def gradient(self) -> torch.Tensor | None:
        """Where torch adds it up: elsewhere while a backward is running."""
        saved = getattr(self.param, "_saved_grad_shard", None)
        found: torch.Tensor | None = self.param.grad if saved is None else saved
        return found

    def fill(self, staging: torch.Tensor) -> None:
        gradient = self.gradient
        if gradient is None:
            staging.zero_()
        else:
            staging.copy_(gradient)

    def deliver(self, total: torch.Tensor) -> None:
        """Divided already, by the original numbers of shards and replicas (INV-8)."""
        gradient = self.gradient
        assert gradient is not None, "a bucket is registered by its first gradient"
        gradient.copy_(total)


class Fsdp1:
    """Serves every flat parameter of the script's FSDP1 module."""

    name = "fsdp1"
    early = synced = True
    lender = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._flat: dict[int, Flat] = {}
        self._module: Any = None  # the outermost: it is made last

    # --------------------------------------------------------------------------- hooks

    def init(self, original: Callable[..., None]) -> Callable[..., None]:
        """`FullyShardedDataParallel.__init__` that learns the topology from its groups."""

        def wrapper(module: Any, /, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self._learn(module)
            if self._serves():
                self._module = module

        return wrapper

    def reduce_grad(self, original: Callable[..., None]) -> Callable[..., None]:
        """`_reduce_grad` that stops before the all-reduce."""

        def wrapper(state: Any, handle: Any) -> None:
            strategy = handle._sharding_strategy
            if not self._serves() or strategy.name not in HYBRID:
                original(state, handle)
                return
            self._session.backward_reaches_bucket()
            handle._sharding_strategy = type(strategy).FULL_SHARD
            try:
                original(state, handle)
            finally:
                handle._sharding_strategy = strategy
            self._reduced(handle.flat_param)

        return wrapper

    def no_sync(
        self, original: Callable[..., AbstractContextManager[None]]
    ) -> Callable[..., AbstractContextManager[None]]:
        """`FullyShardedDataParallel.no_sync`, which code that is executed again does not heed."""

        def wrapper(module: Any) -> AbstractContextManager[None]:
            session = self._session
            each = session.acting or session.crossing.proving(session)
            return nullcontext() if self._serves() and each else original(module)

        return wrapper

    def forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`FullyShardedDataParallel.forward`, to know when the outermost one begins."""

        def wrapper(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if module is self._module and torch.is_grad_enabled():
                self._session.forward_begins()
                self.synced = bool(module._sync_gradients)
            return original(module, *args, **kwargs)

        return wrapper

    # --------------------------------------------------------------------------- topology

    def _serves(self) -> bool:
        session = self._session
        served = session.machine is not None and session.strategy is self
        return served and session.runtime.active

    def _learn(self, module: Any) -> None:
        session = self._session
        if session.strategy is not None or session.refusal:
            return
        strategy = module.sharding_strategy
        if strategy.name not in HYBRID:
            session.refuse(f"FSDP1 with {strategy.name} is not served, only with hybrid sharding")
            return
        if module.compute_device.type != "cpu":
            device = module.compute_device.type
            session.refuse(f"FSDP1 on {device} is not served yet, only on the CPU")
            return
        shards = dist.get_process_group_ranks(module.process_group)
        replicas = dist.get_process_group_ranks(module._inter_node_pg)
        layout = layout_of(dist.get_world_size(), shards, replicas)
        if layout is None:
            session.refuse(
                f"FSDP1 shards over ranks {shards} and replicates over {replicas}: served are "
                "replicas of neighbouring ranks that make up the whole world"
            )
            return
        groups.release(layout)
        session.protect(self, layout)

    # --------------------------------------------------------------------------- reduction

    def _reduced(self, param: Any) -> None:
        """This rank's gradient of a flat parameter has grown by a microbatch."""
        session, key = self._session, id(param)
        assert session.reducer is not None, "protected"
        flat = self._flat.get(key)
        if flat is None:
            flat = self._flat[key] = Flat(param)
            gradient = flat.gradient
            assert gradient is not None, "just reduced"
            session.reducer.register(
                Bucket(
                    key=key,
                    size=gradient.numel(),
                    dtype=gradient.dtype,
                    fill=flat.fill,
                    deliver=flat.deliver,
                )
            )
        generation = session.last_in_sight()
        if generation:
            session.reducer.offer(key, generation)

    # --------------------------------------------------------------------------- Strategy

    def owners(self) -> list[Any]:
        return [flat.param for flat in self._flat.values()]

    def accumulators(self) -> list[torch.Tensor]:
        found = [flat.gradient for flat in self._flat.values()]
        return [one for one in found if one is not None]

    def set_aside(self) -> object:
        kept = {}
        for key, flat in self._flat.items():
            if (gradient := flat.gradient) is not None:
                kept[key] = gradient.clone()
                gradient.zero_()
        return kept

    def put_back(self, kept: object) -> None:
        assert isinstance(kept, dict), "what set_aside returned"
        for key, value in kept.items():
            gradient = self._flat[key].gradient
            assert gradient is not None, "only added to in between"
            gradient.copy_(value)

    def drop(self, params: Iterable[torch.Tensor]) -> bool:
        ours = {id(param) for param in self._module.parameters() if param.requires_grad}
        return ours <= {id(param) for param in params}

    def buffers(self) -> list[torch.Tensor]:
        return list(self._module.buffers()) if self._module is not None else []

    def parameters(self) -> dict[str, torch.Tensor]:
        return {
            name: module._handle.flat_param._local_shard.detach()
            for name, module in self._module.named_modules()
            if getattr(module, "_handle", None) is not None
        }
