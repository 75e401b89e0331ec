"""DistributedDataParallel: one replica per rank of its group, or per tensor-parallel group.

A script may wrap several models; each is a `DdpModule` with a reducer of its own, and a transaction
reduces those whose gradients torch would have reduced in that backward.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ft_collectives.communicators.script_modes import aside
from ft_collectives.step.reducer import Reducer
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.groups import device_support
from recoverrun.worker.groups.topology import layout_over
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies import grad_accumulators
from recoverrun.worker.strategies.ddp_buckets import EVEN, UNEVEN
from recoverrun.worker.strategies.ddp_forward import Forwards, switches_of
from recoverrun.worker.strategies.ddp_module import DdpModule
from recoverrun.worker.strategies.leading_buffers import DdpForwardSync

HIDDEN = "DDP alone holds a {}, the state of a communication hook"
OTHERS = "this process has wrapped {here} models in DDP, others {there}"


class Ddp:
    """Serves the script's DDP modules."""

    name = "ddp"
    early = alone = True
    terms = unlike = ""

    def __init__(self, host: StrategyHost) -> None:
        self._host = host
        self._modules: list[DdpModule] = []
        self.forwards = Forwards(host, self.find)
        self.switches = partial(switches_of, self.roots)
        self._wrapped = 0  # so many modules, since the run began
        self.forward_sync = DdpForwardSync(
            lambda: [(module, one.buffers) for one in self._modules if (module := one.module)],
            host.worker.left_buffers.leave,
        )

    # --------------------------------------------------------------------------- hooks

    def init(self, original: Callable[..., None]) -> Callable[..., None]:
        """`DDP.__init__` that takes the module under protection.

        Code that is executed for a lost rank and wraps a model anew (unfreezing) gets the one that
        this rank's own code has wrapped there: ranks open their channels together.
        """

        def wrapper(module: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> None:
            known = self._wrapped_here(args[0] if args else kwargs.get("module"))
            if known is not None:
                object.__setattr__(module, "__dict__", vars(known))
                return
            original(module, *args, **kwargs)
            self._learn(module)

        return wrapper

    def _wrapped_here(self, inner: Any) -> DistributedDataParallel | None:
        """The latest of our modules around the model `inner`, in which another rank's code runs."""
        if not self._host.worker.acting:
            return None
        known = [one.module for one in self._modules if not one.gone]
        return next(
            (one for one in reversed(known) if one is not None and one.module is inner), None
        )

    def register_comm_hook(self, original: Callable[..., None]) -> Callable[..., None]:
        """A hook of the script's: torch's compressing ones are served, others are left alone."""

        def wrapper(module: DistributedDataParallel, state: Any, hook: Any) -> None:
            wrapped = self.find(module)
            if wrapped is None or hook == wrapped.reduce:
                original(module, state, hook)
                if not isinstance(state, dist.ProcessGroup | None):
                    self._host.worker.take_no_snapshots(HIDDEN.format(type(state).__name__))
                return
            module._check_comm_hook(hook)
            self._take_hook(wrapped, state, hook)

        return wrapper

    def register_builtin(self, original: Callable[..., None]) -> Callable[..., None]:
        """The same hooks, written in C++."""

        def wrapper(module: DistributedDataParallel, kind: Any) -> None:
            wrapped = self.find(module)
            if wrapped is None:
                original(module, kind)
            else:
                self._take_hook(wrapped, None, kind)

        return wrapper

    def _take_hook(self, wrapped: DdpModule, state: Any, hook: Any) -> None:
        if refusal := wrapped.take_hook(state, hook):
            self._give_back(refusal, snapshots=isinstance(state, dist.ProcessGroup | None))

    def _give_back(self, reason: str, *, snapshots: bool = True) -> None:
        """DDP reduces by itself from now on, and no step outlives a loss."""
        self._host.worker.refuse(reason, snapshots=snapshots)
        for wrapped in self._modules:
            wrapped.gone = True

    def join(self, original: Callable[..., None]) -> Callable[..., None]:
        """`Join.__init__`: in it ranks take as many steps as they have batches, and no vote."""

        def wrapper(
            context: Any, joinables: Any, enable: bool = True, *args: Any, **kwargs: Any
        ) -> None:
            original(context, joinables, enable, *args, **kwargs)
            if not enable or not any(self.find(one) is not None for one in joinables):
                return
            if self._host.worker.lost and not kwargs.get("divide_by_initial_world_size", True):
                raise RuntimeError(f"{UNEVEN}; run it with --no-protect")
            self._give_back(EVEN)

        return wrapper

    # --------------------------------------------------------------------------- topology

    def find(self, module: Any) -> DdpModule | None:
        """The module, if its gradients are ours to reduce."""
        if not self._host.worker.runtime.active:
            return None
        found = (
            one
            for one in self._modules
            if one.module is not None and vars(one.module) is vars(module) and not one.gone
        )
        return next(found, None)

    @aside
    def _learn(self, module: DistributedDataParallel) -> None:
        host = self._host
        if host.worker.refusal:
            return
        # Asked now: torch forgets them once the script destroys the group.
        ranks = dist.get_process_group_ranks(module.process_group)
        layout = layout_over(module.process_group)
        if layout is None:
            host.worker.refuse(
                f"DDP over ranks {ranks} is not served: only over all, or over those with the same "
                "place in replicas of neighbouring ranks"
            )
            return
        refusal = device_support.refusal(
            module, exact=host.worker.env.exact, alone=len(layout.replicas[0]) == 1
        )
        if refusal:
            host.worker.refuse(refusal)
            return
        over = device_support.communicators(next(module.parameters()).device)
        if host.serve(self, layout, over):
            wrapped = DdpModule(host, module, self._wrapped, ranks)
            self._wrapped += 1
            self._modules = [one for one in self._modules if one.module is not None]
            self._modules.append(wrapped)
            module.register_comm_hook(None, wrapped.reduce)
            if host.worker.machine is not None:
                wrapped.reducer = host.new_reducer()

    # --------------------------------------------------------------------------- Strategy

    def protect(self) -> None:
        """Gradients are ours to reduce from now on."""
        for wrapped in self._modules:
            wrapped.reducer = self._host.new_reducer()

    def plan(self) -> list[Any] | str:
        plans = [one.plan() for one in self._modules]
        return next((why for why in plans if isinstance(why, str)), plans)

    def adopt(self, plan: list[Any]) -> None:
        if len(self._modules) != len(plan):
            raise NotReachable(OTHERS.format(here=len(self._modules), there=len(plan)))
        for wrapped, parts in zip(self._modules, plan, strict=True):
            wrapped.reducer = self._host.new_reducer()
            wrapped.adopt(parts)

    def admit(self) -> None:
        for wrapped in self._modules:
            wrapped.admit()

    def begin(self) -> None:
        for wrapped in self._modules:
            wrapped.begin()

    def backward_begins(self) -> None:
        for wrapped in self._modules:
            wrapped.backward_begins()

    def backward_done(self) -> None:
        for wrapped in self._modules:
            wrapped.backward_done()
        worker = self._host.worker
        if worker.protected and self.synced:
            self.forward_sync.leave(worker.step, worker.env.rank)

    @property
    def synced(self) -> bool:
        return any(wrapped.synced for wrapped in self._modules)

    def asked_to_reduce(self) -> bool | None:
        if not self._host.worker.acting:
            asked = [wrapped.asked for wrapped in self._modules]
        else:
            asked = [wrapped.asked_acting for wrapped in self._modules]
            for wrapped in self._modules:
                wrapped.asked_acting = False
        return None if None in asked else any(asked)

    def digest(self) -> int:
        own = 0
        for wrapped in self._modules:
            if wrapped.carries:
                return 0  # gradients of earlier transactions are among them
            native = wrapped.reducer is None and wrapped.synced  # torch has reduced them
            own ^= wrapped.own if native else wrapped.digest()
        return own

    def reducers(self) -> list[Reducer]:
        found = [one.reducer for one in self._modules if one.synced and one.reducer is not None]
        return found

    def standing(self) -> list[tuple[int, int]]:
        return grad_accumulators.standing(self.whole())

    def empty(self) -> bool:
        return grad_accumulators.empty(self.whole())

    def whole(self) -> list[torch.Tensor]:
        if len(self._modules) == 1:  # asked several times in a microbatch
            return list(self._modules[0].params)
        found = {id(param): param for wrapped in self._modules for param in wrapped.params}
        return list(found.values())

    def accumulators(self) -> list[torch.Tensor]:
        return grad_accumulators.accumulators(self.whole())

    def set_aside(self) -> object:
        # Those that are frozen now, too: code that is executed again may train or clear them.
        held = (param for module in self.roots() for param in module.parameters())
        found = {id(param): param for param in (*held, *self.whole())}
        params = list(found.values())
        return params, grad_accumulators.set_aside(params)

    def clear(self) -> None:
        grad_accumulators.clear(self.whole())

    def put_back(self, kept: object) -> None:
        assert isinstance(kept, tuple), "what set_aside returned"
        grad_accumulators.put_back(*kept)

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self.roots() for buffer in module.buffers()]

    def roots(self) -> list[torch.nn.Module]:
        return [module for one in self._modules if (module := one.module) is not None]

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters, also of modules that the script has dropped: a trainer may, before it
        ends.
        """
        named: dict[str, torch.Tensor] = {}
        for place, wrapped in enumerate(self._modules):
            prefix = f"{place}." if place else ""
            named.update({f"{prefix}{name}": one for name, one in wrapped.named().items()})
        return named
