"""DistributedDataParallel: one replica per rank of its group, or per tensor-parallel group.

A comm hook (`DDP.register_comm_hook`) gets every bucket when its gradients are ready. It hands the
bucket back un-reduced, so `p.grad` stays this rank's own accumulator until the commit point, with
`no_sync` and without; in the last microbatch it also starts the reduction of a copy. At the commit
point the reduced sum, divided by the original world size as DDP divides, is written to `p.grad`.

Re-executed microbatches run as under `no_sync`: they only accumulate. So do all, once DDP has put
every gradient into a single bucket: that one is complete when backward is, so nothing could overlap
it, and DDP's copies into its bucket and back are saved.
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
from recoverrun.hooks.strategies.ddp_buckets import EVEN, UNEVEN, Gradients, Resting, wire_of


class Ddp:
    """Serves the script's one DDP module."""

    name = "ddp"
    early = synced = True
    lender = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._module: DistributedDataParallel | None = None
        self._gradients: dict[tuple[int, ...], Gradients] = {}  # by the bucket's key
        self._stained = False  # re-executed microbatches left traces in DDP's books
        self._single: Gradients | None = None  # all of them, reduced without DDP
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
            if not self._serves(module) or hook == self._reduce:
                original(module, state, hook)
                return
            module._check_comm_hook(hook)
            self._take_hook(state, hook)

        return wrapper

    def register_builtin(self, original: Callable[..., None]) -> Callable[..., None]:
        """The same hooks, written in C++."""

        def wrapper(module: DistributedDataParallel, kind: Any) -> None:
            if self._serves(module):
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
            if not enable or not any(self._serves(one) for one in joinables):
                return
            if not kwargs.get("divide_by_initial_world_size", True):
                raise RuntimeError(f"{UNEVEN}; run it with --no-protect")
            self._give_back(EVEN, self._served.process_group, allreduce_hook)

        return wrapper

    def forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`DDP.forward`; a re-executed microbatch runs as under `no_sync`."""

        def wrapper(module: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
            # Not `module.training`: Lightning evaluates, and leaves the wrapper in that mode.
            if not self._serves(module) or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            self._session.forward_begins()
            acting = self._session.acting
            self.synced = module.require_backward_grad_sync
            if acting:
                self._stained = True
            elif self._stained:
                self._stained = False
                Resting.forget(module)
            if not acting and not self._goes_alone(module):
                return original(module, *args, **kwargs)
            own = vars(module)  # what a module does when it is given an attribute takes its time
            copied = own["require_forward_param_sync"]
            reducer = own["reducer"]
            own["require_backward_grad_sync"] = False
            if acting:
                own["reducer"] = Resting(reducer)
            try:
                return original(module, *args, **kwargs)
            finally:
                own["reducer"] = reducer
                own["require_backward_grad_sync"] = self.synced
                own["require_forward_param_sync"] = copied if acting else self.synced

        return wrapper

    def sync_buffers(self, original: Callable[..., None]) -> Callable[..., None]:
        """Buffers are broadcast in the script's own microbatches only."""

        def wrapper(module: DistributedDataParallel) -> None:
            if not (self._serves(module) and self._session.acting):
                original(module)

        return wrapper

    # --------------------------------------------------------------------------- topology

    def _serves(self, module: DistributedDataParallel) -> bool:
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
        key = self._known(bucket)
        generation = session.last_in_sight()
        if generation and session.reducer is not None:
            session.reducer.offer(key, generation)
        self._leave_alone(bucket, self._gradients[key])
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _goes_alone(self, module: DistributedDataParallel) -> bool:
        """Whether DDP has nothing to do with the reduction of this forward's gradients."""
        if self._single is not None and (self._single.lacking or module._join_config.enable):
            self._single = None  # DDP has a word to say about parameters that are not used
        return self._single is not None

    def _leave_alone(self, bucket: Any, gradients: Gradients) -> None:
        """DDP is done with dividing the parameters into buckets: is this one all there is?"""
        module = self._served
        plain = not (
            module.find_unused_parameters
            or module.static_graph
            or module.gradient_as_bucket_view
            or module.mixed_precision is not None
            or gradients.lacking
        )
        whole = bucket.index() == 0 and bucket.is_last() and module._has_rebuilt_buckets
        if not (plain and whole) or self._single is not None:
            return
        self._single = gradients
        if self._session.faults.armed:
            reaches = self._session.backward_reaches_bucket
            gradients.params[0].register_hook(lambda _: reaches())

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
        module = self._served
        gradients = Gradients(
            params=params,
            replicas=module.process_group.size(),
            counts=module.find_unused_parameters or module.static_graph,
            wire=self._wire,
        )
        self._gradients[key] = gradients
        reducer.register(
            Bucket(
                key=key,
                size=gradients.size,
                dtype=self._wire or bucket.buffer().dtype,
                fill=gradients.fill,
                deliver=gradients.deliver,
                device=accelerator.staging(bucket.buffer().device),
            )
        )
        return key

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
