"""One DDP module: when torch would reduce its gradients, and its buckets here.

A comm hook (`DDP.register_comm_hook`) gets every bucket when its gradients are ready. In the first
transaction it reduces as torch does. From then on it hands the bucket back un-reduced, so that
`p.grad` stays this rank's own sum until the transaction ends with this backward, and starts the
reduction of a copy. Once DDP has settled its buckets it has no part in this any more
(`ddp_reducer_bypass`).
"""

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ft_collectives.step.reducer import Bucket, Reducer
from recoverrun.worker.context.evidence import crc_of_gradient
from recoverrun.worker.groups import device_support
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp_buckets import Gradients, wire_of
from recoverrun.worker.strategies.ddp_reducer_bypass import Arrivals, Still
from recoverrun.worker.strategies.grad_accumulators import standing

UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This "
    "error indicates that your module has parameters that were not used in producing loss. You can "
    "enable unused parameter detection by passing the keyword argument "
    "`find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`"
)
"""DDP's own words (reducer.cpp), where it is not there to say them."""


SPARSE = "gradients are sparse (`sparse=True` of an embedding): nobody can make up a part of such"


class DdpModule:
    """Serves one DDP module; without a `reducer` torch reduces."""

    def __init__(self, host: StrategyHost, module: DistributedDataParallel) -> None:
        self._host = host
        self._module = weakref.ref(module)
        self.reducer: Reducer | None = None
        self.synced = False  # the present backward is one in which torch reduces its gradients
        self.stained = self.still = False  # see `ddp_forward.Wrapped`
        self.hooked = False  # by the script
        self.gone = False  # torch reduces from now on
        self.own = 0  # digest of this rank's gradient, before torch reduced it
        self._armed = False  # a forward has begun that such a backward follows
        self._partly = False  # the last such backward left out some of the parameters
        self._wire: torch.dtype | None = None  # what the script's hook sends
        self._theirs: tuple[Any, Any] | None = None  # the script's hook and its state
        self._gradients: dict[tuple[int, ...], Gradients] = {}  # by the bucket's key
        self._still = Still(host)
        self._arrivals: Arrivals | None = None
        self._grads: list[tuple[int, int]] = []  # before the present backward
        self._carried: dict[int, torch.Tensor] = {}  # before the transaction, by parameter
        self._params: list[torch.nn.Parameter] = []
        self._named: dict[str, torch.Tensor] = {}
        self.named()

    @property
    def module(self) -> DistributedDataParallel | None:
        """None once the script has dropped it."""
        return self._module()

    @property
    def params(self) -> list[torch.nn.Parameter]:
        """Those of this transaction that are trained."""
        if not self._params:
            self._params = self._found()
        return self._params

    def named(self) -> dict[str, torch.Tensor]:
        """All that the wrapped model holds, by name, also once the script has dropped it."""
        module = self.module
        if module is not None:
            inner = module.module
            self._named = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
        return {name: one.detach() for name, one in self._named.items()}

    def _found(self) -> list[torch.nn.Parameter]:
        """Those that DDP was given, too: a tensor-parallel module shows them until its forward."""
        module = self.module
        if module is None:
            return []
        known = {id(one): one for one in (*module._module_parameters, *module.parameters())}
        return [param for param in known.values() if param.requires_grad]

    # --------------------------------------------------------------------------- hooks

    def take_hook(self, state: Any, hook: Any) -> str:
        """A communication hook of the script's. Returns why it cannot be served, or ""."""
        if self.hooked:
            raise RuntimeError("a DDP communication hook can only be registered once")
        self.hooked, self._theirs = True, (state, hook)
        try:
            self._wire = wire_of(hook)
        except (KeyError, TypeError):  # a callable object need not have a hash
            name = getattr(hook, "__qualname__", type(hook).__name__)
            return (
                f"the communication hook {name} changes what DDP reduces; a lost rank's part in it "
                "cannot be made up"
            )
        return ""

    def arm(self, synced: bool) -> None:
        """A forward of the script's own begins; in its backward torch would reduce if `synced`."""
        if self._partly and self.still:
            raise RuntimeError(UNFINISHED)
        self._armed |= synced
        if self.reducer is None:
            self.still = False
            return
        parts = self._still.due()
        if parts:
            self._take(parts)
        module = self.module
        assert module is not None, "its forward runs"
        self.still = self._still.serves(module)
        if self._arrivals is not None:
            self._arrivals.begin(self.still and synced)

    def reduce(
        self,
        _: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP checks this very name
    ) -> torch.futures.Future[torch.Tensor]:
        """The communication hook that DDP knows."""
        host, module = self._host, self.module
        assert module is not None, "its backward runs"
        if self.gone or not host.worker.runtime.active or self.reducer is None:
            return self._natively(module, bucket)
        host.bucket_reached()
        self.synced |= bool(bucket.is_last())
        if not self._still.gradients:
            key = self._known(module, bucket)
            self._offer(key)
            self._still.look(module, bucket, self._gradients.values())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _natively(
        self, module: DistributedDataParallel, bucket: Any
    ) -> torch.futures.Future[torch.Tensor]:
        """As DDP reduces without a hook of ours, to the last bit."""
        self._host.bucket_reached()
        self.synced |= bool(bucket.is_last())
        if bucket.buffer().layout is torch.strided:
            places = self._places()
            for param, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                self.own ^= crc_of_gradient(places[id(param)], gradient, param)
        else:
            self._host.worker.refuse(SPARSE)
        if self._theirs is not None and callable(self._theirs[1]):
            state, hook = self._theirs
            theirs: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return theirs
        return native(module, bucket, self._wire)

    # --------------------------------------------------------------------------- a transaction

    def begin(self) -> None:
        """A transaction's first backward begins: torch reduces what is there already, too."""
        self._params = self._found()
        self._carried = {
            id(param): param.grad.detach().clone()
            for param in self.params
            if param.grad is not None
        }
        for part in self._gradients.values():
            part.carried = [self._carried.get(id(param)) for param in part.params]

    def backward_begins(self) -> None:
        """A backward of the script's own begins."""
        self.synced, self.own = False, 0
        self._grads = standing(self.params) if self.still and self._armed else []

    def backward_done(self) -> None:
        """It has ended: was it one in which torch reduces these gradients?"""
        if self.still and self._armed and self._complete():
            self.synced = True
            assert self.reducer is not None, "DDP keeps still"
            self.reducer.include(self._gradients)
        self._armed &= not self.synced
        self._partly = self._armed and bool(self._grads) and self._grads != standing(self.params)
        if self._arrivals is not None:
            self._arrivals.begin(self._armed and self.still)

    def _complete(self) -> bool:
        """Did the backward give a gradient to all parameters of which DDP expects one?"""
        now = standing(self.params)
        if len(now) != len(self._grads):
            return False
        changed = [new != old for new, old in zip(now, self._grads, strict=True)]
        counts = any(part.counts for part in self._gradients.values())
        return any(changed) if counts else bool(changed) and all(changed)

    @property
    def carries(self) -> bool:
        """True if gradients held something before the transaction."""
        return any(bool(one.any()) for one in self._carried.values())

    def digest(self) -> int:
        """Of this rank's gradients as they are now."""
        own = 0
        for place, param in enumerate(self.params):
            own ^= crc_of_gradient(place, param.grad, param)
        return own

    def _places(self) -> dict[int, int]:
        return {id(param): place for place, param in enumerate(self.params)}

    # --------------------------------------------------------------------------- buckets

    def _offer(self, key: tuple[int, ...]) -> None:
        assert self.reducer is not None, "protected"
        self.reducer.include([key])
        if generation := self._host.final_in():
            self.reducer.offer(key, generation)

    def _take(self, parts: list[Gradients]) -> None:
        """DDP has no part in these any more."""
        assert self.reducer is not None, "protected"
        if self._still.whole:
            self._gather([param for part in parts for param in part.params])
        else:
            self._arrivals = Arrivals(self._host, self.reducer, dict(self._gradients))
        self._still.gradients = list(self._gradients.values())

    def _gather(self, params: list[torch.nn.Parameter]) -> None:
        """All gradients are one bucket from now on."""
        assert self.reducer is not None, "protected"
        self.reducer.forget()
        self._gradients.clear()
        self._register(params, params[0])
        if self._host.worker.failpoints.armed:
            for param in params:  # the first one may be unused
                if param.requires_grad:
                    param.register_hook(lambda _: self._host.bucket_reached())

    def _known(self, module: DistributedDataParallel, bucket: Any) -> tuple[int, ...]:
        """The bucket's key. DDP divides the parameters into buckets anew after the first step."""
        assert self.reducer is not None, "protected"
        params = list(bucket.parameters())
        key = tuple(id(param) for param in params)
        if key in self.reducer.buckets:
            return key
        if bucket.index() == 0:
            self.reducer.forget()
            self._gradients.clear()
        self._register(params, bucket.buffer())
        return key

    def _register(self, params: list[torch.nn.Parameter], like: torch.Tensor) -> None:
        """A bucket of these, which DDP would reduce in memory of this kind."""
        module = self.module
        assert self.reducer is not None and module is not None, "protected"
        gradients = Gradients(
            params=params,
            replicas=module.process_group.size(),
            counts=module.find_unused_parameters or module.static_graph,
            wire=self._wire,
            divides=self.hooked or module.gradient_as_bucket_view,
            carried=[self._carried.get(id(param)) for param in params],
        )
        key = tuple(id(param) for param in params)
        self._gradients[key] = gradients
        self.reducer.register(
            Bucket(
                key=key,
                size=gradients.size,
                dtype=self._wire or like.dtype,
                fill=gradients.fill,
                deliver=gradients.deliver,
                carry=gradients.carry,
                device=device_support.staging(like.device),
            )
        )


def native(
    module: DistributedDataParallel, bucket: Any, wire: torch.dtype | None
) -> torch.futures.Future[torch.Tensor]:
    """What DDP does with a bucket where it has no hook (reducer.cpp, torch 2.13)."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    group, buffer = module.process_group, bucket.buffer()
    if wire is not None:
        compressed: torch.futures.Future[torch.Tensor] = fp16_compress_hook(group, bucket)
        return compressed
    if module.gradient_as_bucket_view:
        reduced: torch.futures.Future[torch.Tensor] = allreduce_hook(group, bucket)
        return reduced
    buffer.mul_(1.0 / group.size())
    work = group.allreduce([buffer])
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed
