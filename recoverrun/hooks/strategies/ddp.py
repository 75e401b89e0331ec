"""DistributedDataParallel: one replica per rank of its group, or per tensor-parallel group.

A comm hook (`DDP.register_comm_hook`) gets every bucket when its gradients are ready. It hands the
bucket back un-reduced, so `p.grad` stays this rank's own accumulator until the commit point, with
`no_sync` and without; in the last microbatch it also starts the reduction of a copy. At the commit
point the reduced sum, divided by the original world size as DDP divides, is written to `p.grad`.

Re-executed microbatches run as under `no_sync`: they only accumulate. So do most others, once DDP
has settled its buckets and is of no use any more (see `ddp_still`).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ft_collectives.reduce import Bucket
from recoverrun.hooks import accelerator, groups
from recoverrun.hooks.blocks import layout_over
from recoverrun.hooks.session import Session
from recoverrun.hooks.strategies import plain
from recoverrun.hooks.strategies.ddp_buckets import EVEN, UNEVEN, Gradients, wire_of
from recoverrun.hooks.strategies.ddp_forward import Forwards
from recoverrun.hooks.strategies.ddp_still import Arrivals, Still


class Ddp:
    """Serves the script's one DDP module."""

    name = "ddp"
    early = True
    lender = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._module: DistributedDataParallel | None = None
        self._gradients: dict[tuple[int, ...], Gradients] = {}  # by the bucket's key
        self._still = Still(session)
        self._arrivals: Arrivals | None = None
        self.forwards = Forwards(session, self)
        self._hooked = False  # by the script
        self._wire: torch.dtype | None = None  # what its hook sends
        self._theirs: tuple[Any, Any] | None = None  # a hook that is not served, and its state

    # --------------------------------------------------------------------------- hooks

    def init(self, original: Callable[..., None]) -> Callable[..., None]:
        """`DDP.__init__` that takes the module under protection."""

        def wrapper(module: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self._learn(module)

        return wrapper

    def register_comm_hook(self, original: Callable[..., None]) -> Callable[..., None]:
        """A hook of the script's: torch's compressing ones are served, others are left alone."""

        def wrapper(module: DistributedDataParallel, state: Any, hook: Any) -> None:
            if not self.serves(module) or hook == self._reduce:
                original(module, state, hook)
                return
            module._check_comm_hook(hook)
            self._take_hook(state, hook)

        return wrapper

    def register_builtin(self, original: Callable[..., None]) -> Callable[..., None]:
        """The same hooks, written in C++."""

        def wrapper(module: DistributedDataParallel, kind: Any) -> None:
            if self.serves(module):
                self._take_hook(None, kind)
            else:
                original(module, kind)

        return wrapper

    def _take_hook(self, state: Any, hook: Any) -> None:
        if self._hooked:
            raise RuntimeError("a DDP communication hook can only be registered once")
        self._hooked = True
        try:
            self._wire = wire_of(hook)
        except (KeyError, TypeError):  # a callable object need not have a hash
            name = getattr(hook, "__qualname__", type(hook).__name__)
            self._give_back(
                f"the communication hook {name} changes what DDP reduces; a lost rank's part in "
                "it cannot be made up",
                state,
                hook,
            )

    def _give_back(self, reason: str, state: Any, hook: Any) -> None:
        """DDP reduces by this hook from now on, and nothing is protected."""
        self._session.refuse(reason)
        self._session.runtime.active = False
        self._theirs = (state, hook)

    def join(self, original: Callable[..., None]) -> Callable[..., None]:
        """`Join.__init__`: in it ranks take as many steps as they have batches, and no vote."""

        def wrapper(
            context: Any, joinables: Any, enable: bool = True, *args: Any, **kwargs: Any
        ) -> None:
            original(context, joinables, enable, *args, **kwargs)
            if not enable or not any(self.serves(one) for one in joinables):
                return
            if not kwargs.get("divide_by_initial_world_size", True):
                raise RuntimeError(f"{UNEVEN}; run it with --no-protect")
            self._give_back(EVEN, self._served.process_group, allreduce_hook)

        return wrapper

    # --------------------------------------------------------------------------- topology

    @property
    def synced(self) -> bool:
        return self.forwards.synced

    def serves(self, module: DistributedDataParallel) -> bool:
        """Is this the module, and are its gradients ours to reduce?"""
        served = self._session.machine is not None and self._theirs is None
        return served and module is self._module and self._session.runtime.active

    @property
    def _served(self) -> DistributedDataParallel:
        assert self._module is not None, "protected"
        return self._module

    def _learn(self, module: DistributedDataParallel) -> None:
        session = self._session
        if session.refusal:
            return
        if session.strategy is not None:
            session.refuse("the script wraps more than one model in DDP")
            return
        layout = layout_over(module.process_group)
        if layout is None:
            ranks = dist.get_process_group_ranks(module.process_group)
            session.refuse(
                f"DDP over ranks {ranks} is not served: only over all, or over those with the same "
                "place in replicas of neighbouring ranks"
            )
            return
        refusal = accelerator.refusal(
            module, exact=session.env.exact, alone=len(layout.replicas[0]) == 1
        )
        if refusal:
            session.refuse(refusal)
            return
        self._module = module
        groups.release(layout)
        over = accelerator.communicators(next(module.parameters()).device)
        if session.protect(self, layout, over):
            module.register_comm_hook(None, self._reduce)

    # --------------------------------------------------------------------------- reduction

    def _reduce(
        self,
        _: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP checks this very name
    ) -> torch.futures.Future[torch.Tensor]:
        session = self._session
        if self._theirs is not None or not session.runtime.active:
            state, hook = self._theirs or (self._served.process_group, allreduce_hook)
            theirs: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return theirs
        session.backward_reaches_bucket()
        if not self._still.gradients:
            key = self._known(bucket)
            generation = session.last_in_sight()
            if generation and session.reducer is not None:
                session.reducer.offer(key, generation)
            self._still.look(self._served, bucket, self._gradients.values())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def reduces(self, module: DistributedDataParallel) -> bool:
        """Whether DDP has a part in the reduction of the gradients of a forward that begins."""
        parts = self._still.due()
        if parts:
            self._take(parts)
        if self._arrivals is not None:
            self._arrivals.begin(self.synced)
        return not self._still.serves(module)

    def _take(self, parts: list[Gradients]) -> None:
        """DDP has no part in these any more."""
        if self._still.whole:
            self._gather([param for part in parts for param in part.params])
        else:
            self._arrivals = Arrivals(self._session, dict(self._gradients))
        self._still.gradients = list(self._gradients.values())

    def _gather(self, params: list[torch.nn.Parameter]) -> None:
        """All gradients are one bucket from now on."""
        reducer = self._session.reducer
        assert reducer is not None, "protected"
        reducer.forget()
        self._gradients.clear()
        self._register(params, params[0])
        if self._session.faults.armed:
            reaches = self._session.backward_reaches_bucket
            for param in params:  # the first one may be unused
                param.register_hook(lambda _: reaches())

    def _known(self, bucket: Any) -> tuple[int, ...]:
        """The bucket's key. DDP divides the parameters into buckets anew after the first step."""
        reducer = self._session.reducer
        assert reducer is not None, "protected"
        params = list(bucket.parameters())
        key = tuple(id(param) for param in params)
        if key in reducer.buckets:
            return key
        if bucket.index() == 0:
            reducer.forget()
            self._gradients.clear()
        self._register(params, bucket.buffer())
        return key

    def _register(self, params: list[torch.nn.Parameter], like: torch.Tensor) -> None:
        """A bucket of these, which DDP would reduce in memory of this kind."""
        reducer, module = self._session.reducer, self._served
        assert reducer is not None, "protected"
        gradients = Gradients(
            params=params,
            replicas=module.process_group.size(),
            counts=module.find_unused_parameters or module.static_graph,
            wire=self._wire,
        )
        key = tuple(id(param) for param in params)
        self._gradients[key] = gradients
        reducer.register(
            Bucket(
                key=key,
                size=gradients.size,
                dtype=self._wire or like.dtype,
                fill=gradients.fill,
                deliver=gradients.deliver,
                device=accelerator.staging(like.device),
            )
        )

    # --------------------------------------------------------------------------- Strategy

    def _params(self) -> list[torch.nn.Parameter]:
        return [param for param in self._served.parameters() if param.requires_grad]

    def owners(self) -> list[Any]:
        return self._params()

    def accumulators(self) -> list[torch.Tensor]:
        return plain.accumulators(self._params())

    def set_aside(self) -> object:
        return plain.set_aside(self._params())

    def put_back(self, kept: object) -> None:
        plain.put_back(self._params(), kept)

    def drop(self, params: Iterable[torch.Tensor]) -> bool:
        return {id(param) for param in self._params()} <= {id(param) for param in params}

    def buffers(self) -> list[torch.Tensor]:
        return list(self._served.buffers())

    def parameters(self) -> dict[str, torch.Tensor]:
        module = self._served.module
        return {n: p.detach() for n, p in (*module.named_parameters(), *module.named_buffers())}
