"""FSDP1 with hybrid sharding: `FullyShardedDataParallel` with HYBRID_SHARD or _HYBRID_SHARD_ZERO2.

torch reduces the gradient of a flat parameter in `_reduce_grad`: reduce-scatter inside the replica,
all-reduce across replicas, division, and addition to the sharded gradient
(torch/distributed/fsdp/_runtime_utils.py). Told that its handle is fully sharded and that nothing
is to be divided, it leaves out the second and the third; what it would add is this rank's own
accumulator. As the backward ends, the sum over all replicas is divided and added, in place: with
`use_orig_params` the gradients of the original parameters are views of the sharded one.

Under `no_sync` gradients are kept unsharded until the last microbatch: that is left as it is, but
re-executed microbatches are each reduced by themselves.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ft_collectives.step.reducer import Bucket, Reducer
from recoverrun.worker.groups.topology import layout_of
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.step.strategy import Sharding, Switched
from recoverrun.worker.strategies.fsdp1_flat import SAVED, Flat, crc_of_flat, local_shard

HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
ONE_REPLICA = ("FULL_SHARD", "SHARD_GRAD_OP")


class Fsdp1(Sharding):
    """Serves every flat parameter of the script's FSDP1 module."""

    name = "fsdp1"
    early = True
    terms = unlike = ""
    alone = False  # a forward pass needs the other shards

    def __init__(self, host: StrategyHost) -> None:
        self._host = host
        self._flat: dict[int, Flat] = {}
        self._reducer: Reducer | None = None
        self._module: Any = None  # the outermost: it is made last
        self.synced = False  # torch reduces in the present backward
        self._asked = False  # see `Strategy.asked_to_reduce`
        self._held_back = 0  # blocks of `no_sync` around code that is executed again
        self._shown = 0  # of what this rank has given to reductions in it

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
            self._host.bucket_reached()
            if self._host.replayer.compares:
                self._shown ^= crc_of_flat(handle)
            self.synced |= not self._host.worker.acting
            self._asked |= not self._held_back
            if self._reducer is None:
                original(state, handle)
                return
            param, factor = handle.flat_param, state._gradient_postdivide_factor
            dtype = param.grad.dtype  # as replicas add it up: torch casts it back only after that
            before = getattr(param, SAVED, None)
            if before is not None:
                delattr(param, SAVED)
            handle._sharding_strategy = type(strategy).FULL_SHARD
            state._gradient_postdivide_factor = 1.0
            try:
                original(state, handle)
            finally:
                handle._sharding_strategy = strategy
                state._gradient_postdivide_factor = factor
            self._reduced(handle, before, self._reducer, divisor=factor, dtype=dtype)

        return wrapper

    def no_sync(
        self, original: Callable[..., AbstractContextManager[None]]
    ) -> Callable[..., AbstractContextManager[None]]:
        """`FullyShardedDataParallel.no_sync`, which code that is executed again does not heed."""

        def wrapper(module: Any) -> AbstractContextManager[None]:
            each = self._serves() and self._host.worker.acting
            return self._unheeded() if each else original(module)

        return wrapper

    @contextmanager
    def _unheeded(self) -> Iterator[None]:
        self._held_back += 1
        try:
            yield
        finally:
            self._held_back -= 1

    def forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`FullyShardedDataParallel.forward`, to know when the outermost one begins."""

        def wrapper(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if module is self._module and torch.is_grad_enabled():
                self._host.forward_begins((*args, kwargs))
            return original(module, *args, **kwargs)

        return wrapper

    # --------------------------------------------------------------------------- topology

    def _serves(self) -> bool:
        return self._host.worker.strategy is self and self._host.worker.runtime.active

    def _learn(self, module: Any) -> None:
        host = self._host
        if host.worker.strategy not in (None, self) or host.worker.refusal:
            return
        strategy = module.sharding_strategy
        if strategy.name not in HYBRID:
            sentence = f"FSDP1 with {strategy.name} is not served, only with hybrid sharding"
            single = strategy.name in ONE_REPLICA or module.process_group.size() == 1
            (host.worker.roll_back if single else host.worker.refuse)(sentence)
            return
        if module.compute_device.type != "cpu":
            device = module.compute_device.type
            host.worker.refuse(f"FSDP1 on {device} is not served yet, only on the CPU")
            return
        shards = dist.get_process_group_ranks(module.process_group)
        replicas = dist.get_process_group_ranks(module._inter_node_pg)
        layout = layout_of(dist.get_world_size(), shards, replicas)
        if layout is None:
            host.worker.refuse(
                f"FSDP1 shards over ranks {shards} and replicates over {replicas}: served are "
                "replicas of neighbouring ranks that make up the whole world"
            )
            return
        host.serve(self, layout, None)

    # --------------------------------------------------------------------------- reduction

    def _reduced(
        self,
        handle: Any,
        before: torch.Tensor | None,
        reducer: Reducer,
        *,
        divisor: float,
        dtype: torch.dtype,
    ) -> None:
        """torch has added this rank's part of the gradient of a flat parameter to nothing."""
        param = handle.flat_param
        key, part = id(param), getattr(param, SAVED)
        flat = self._flat.get(key)
        if flat is None:
            flat = self._flat[key] = Flat(param, handle, divisor)
            reducer.register(
                Bucket(
                    key=key,
                    size=part.numel(),
                    dtype=dtype,
                    fill=flat.fill,
                    deliver=flat.deliver,
                )
            )
        first = flat.accumulator is None
        if first:
            flat.accumulator = part.clone() if before is None else part
            flat.earlier = before is not None
        else:
            flat.accumulator += part
        if before is not None:
            setattr(param, SAVED, before)
            flat.show()
        if not self._host.worker.acting:
            reducer.include([key])
            if generation := self._host.final_in():
                reducer.offer(key, generation)

    # --------------------------------------------------------------------------- Strategy

    def protect(self) -> None:
        """Gradients are ours to reduce from now on."""
        self._reducer = self._host.new_reducer()

    def backward_begins(self) -> None:
        self.synced, self._shown = False, 0

    def backward_done(self) -> None:
        """`_reduce_grad` has told."""

    def asked_to_reduce(self) -> bool | None:
        asked, self._asked = self._asked, False
        return asked

    def switches(self) -> Switched:
        outside = self._module is None or bool(self._module._sync_gradients)
        return partial(self._as_sharded, nullcontext if outside else self._unheeded)

    @contextmanager
    def _as_sharded(self, switched: Switched) -> Iterator[None]:
        sharded = [handle for handle in self._handles() if handle.needs_unshard()]
        with switched():
            try:
                yield
            finally:
                # Code that came to no backward has left the whole, which no update changes.
                _reshard(sharded)

    def digest(self) -> int:
        """The digest of unsharded gradients: those that were reduced, and those that wait."""
        own = self._shown
        for handle in self._handles():
            gradient, whole = handle.flat_param.grad, handle.flat_param._unpadded_unsharded_size
            if gradient is not None and gradient.shape == whole:
                own ^= crc_of_flat(handle)
        return own

    def reducers(self) -> list[Reducer]:
        return [self._reducer] if self._reducer is not None else []

    def accumulators(self) -> list[torch.Tensor]:
        return [one.accumulator for one in self._flat.values() if one.accumulator is not None]

    def set_aside(self) -> object:
        self._shown = 0
        kept = []
        for flat in self._flat.values():
            gradient = flat.gradient
            value = None if gradient is None else gradient.clone()
            kept.append((flat, flat.accumulator, flat.earlier, value))
            flat.accumulator = None
        return kept

    def clear(self) -> None:
        self._shown = 0
        for flat in self._flat.values():
            flat.accumulator = None

    def put_back(self, kept: object) -> None:
        """Put back in place: parameters hold views of the gradient."""
        assert isinstance(kept, list), "what set_aside returned"
        for flat, accumulator, earlier, value in kept:
            flat.accumulator, flat.earlier = accumulator, earlier
            gradient = flat.gradient
            if value is None or gradient is None:
                flat.param.grad = value
            else:
                gradient.copy_(value)
            flat.show()

    def roots(self) -> list[torch.nn.Module]:
        return [self._module] if self._module is not None else []

    def parameters(self) -> dict[str, torch.Tensor]:
        """Never what `data` shows in a forward, which is the whole."""
        return {
            name: local_shard(module._handle.flat_param).detach()
            for name, module in self._module.named_modules()
            if getattr(module, "_handle", None) is not None
        }

    def adopt(self, plan: list[Any]) -> None:
        """A forward of the prologue may have left the whole of a parameter that is given now."""
        super().adopt(plan)
        _reshard(one for one in self._handles() if hasattr(one.flat_param, "_local_shard"))

    def _handles(self) -> list[Any]:
        modules = self._module.modules() if self._module is not None else ()
        found = (getattr(module, "_handle", None) for module in modules)
        return [handle for handle in found if handle is not None]


def _reshard(handles: Iterable[Any]) -> None:
    for handle in handles:
        if not handle.needs_unshard():
            handle.reshard(True)
