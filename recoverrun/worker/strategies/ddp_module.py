"""One DDP module: when torch would reduce its gradients, and its buckets here.

A comm hook (`DDP.register_comm_hook`) gets every bucket when its gradients are ready. In the first
transaction it reduces as torch does. From then on it hands the bucket back un-reduced, so that
`p.grad` stays this rank's own sum until the transaction ends with this backward, and starts the
reduction of a copy. Once DDP has settled its buckets it has no part in this any more
(`ddp_division`).
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ft_collectives.communicators.script_modes import aside
from ft_collectives.step.reducer import Reducer
from recoverrun.worker.context.evidence import crc_of_gradient
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp_buckets import SPARSE, UNFINISHED, native, wire_of
from recoverrun.worker.strategies.ddp_division import Division
from recoverrun.worker.strategies.grad_accumulators import standing
from recoverrun.worker.strategies.leading_buffers import LeadingBuffers
from recoverrun.worker.strategies.memory_order import laid_out

DROPPED = "others still hold a model in DDP that this process has dropped"
OTHERS = "DDP trains {here} parameters of a model in this process, {there} in others"


class DdpModule:
    """Serves one DDP module; without a `reducer` torch reduces."""

    def __init__(
        self,
        host: StrategyHost,
        module: DistributedDataParallel,
        number: int = 0,
        ranks: Sequence[int] = (),
    ) -> None:
        """`number` tells it from other modules of the script; `ranks` are those of its group."""
        self._host = host
        self._module = weakref.ref(module)
        self.buffers = LeadingBuffers(host.worker, ranks, number)
        self.synced = False  # the present backward is one in which torch reduces its gradients
        self.asked: bool | None = False  # see `Strategy.asked_to_reduce`; in our own backward
        self.asked_acting: bool | None = False  # in code that is executed as another rank
        self.stained = self.still = False  # see `ddp_forward.Wrapped`
        self.gone = False  # torch reduces from now on
        self.own = 0  # digest of this rank's gradient, before torch reduced it
        self._armed = False  # a forward has begun that such a backward follows
        self._partly = False  # the last such backward left out some of the parameters
        self._theirs: tuple[Any, Any] | None = None  # the script's hook and its state
        self._division = Division(host)
        self._grads: list[tuple[int, int]] = []  # before the present backward
        self._params: list[torch.nn.Parameter] = []
        self._reduced = self._found()  # by DDP, also while the script has frozen some of them
        self._named: dict[str, torch.Tensor] = {}
        self.named()

    @property
    def module(self) -> DistributedDataParallel | None:
        """None once the script has dropped it."""
        return self._module()

    @property
    def reducer(self) -> Reducer | None:
        """None as long as torch reduces."""
        return self._division.reducer

    @reducer.setter
    def reducer(self, reducer: Reducer) -> None:
        self._division.reducer = reducer

    @property
    def params(self) -> list[torch.nn.Parameter]:
        """Those of this transaction that are trained."""
        if not self._params:
            self._params = self._found()
        return self._params

    @aside
    def named(self) -> dict[str, torch.Tensor]:
        """All that the wrapped model holds, by name, also once the script has dropped it.

        What a tensor-parallel one shows only until its forward is among it.
        """
        module = self.module
        if module is not None:
            inner, given = module.module, {id(param) for param in module._module_parameters}
            kept = {name: one for name, one in self._named.items() if id(one) in given}
            self._named = {**kept, **dict(inner.named_parameters()), **dict(inner.named_buffers())}
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
        if self._division.hooked:
            raise RuntimeError("a DDP communication hook can only be registered once")
        self._division.hooked, self._theirs = True, (state, hook)
        try:
            self._division.wire = wire_of(hook)
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
        module = self.module
        assert module is not None, "its forward runs"
        self.still = self._division.begin(module)
        self._division.expect(self.still and synced)

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
        self._division.filled(module, bucket)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _natively(
        self, module: DistributedDataParallel, bucket: Any
    ) -> torch.futures.Future[torch.Tensor]:
        """Reduce as DDP does without a hook of ours, to the last bit."""
        self._host.bucket_reached()
        self.synced |= bool(bucket.is_last())
        if bucket.buffer().layout is torch.strided:
            places = {id(param): place for place, param in enumerate(self.params)}
            for param, part in zip(bucket.parameters(), bucket.gradients(), strict=True):
                gradient = laid_out(part.view(-1), param)  # DDP shows it as if it were contiguous
                self.own ^= crc_of_gradient(places[id(param)], gradient, param)
        else:
            self._host.worker.refuse(SPARSE)
        if self._theirs is not None and callable(self._theirs[1]):
            state, hook = self._theirs
            theirs: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return theirs
        return native(module, bucket, self._division.wire, self._division.views)

    # --------------------------------------------------------------------------- lost ranks return

    def plan(self) -> list[Any] | str:
        """Buckets, and what DDP does in the next forward; or why no fresh process can do so."""
        module = self.module
        if module is None:
            return []
        buckets = self._division.plan(module, self._reduced)
        if isinstance(buckets, str):
            return buckets
        sync = bool(module.require_forward_param_sync)
        return [buckets, sync, self._partly, len(self._reduced), self.buffers.holder]

    def adopt(self, plan: list[Any]) -> None:
        """Divide as all other ranks do. Raises NotReachable where these train something else."""
        module = self.module
        if not plan:
            return
        if module is None:
            raise NotReachable(DROPPED)
        buckets, sync, self._partly, there, self.buffers.holder = plan
        if buckets and len(self._reduced) != there:
            raise NotReachable(OTHERS.format(here=len(self._reduced), there=there))
        module.require_forward_param_sync = sync
        self._division.adopt(module, self._reduced, buckets)

    def admit(self) -> None:
        """Divide as `plan` has said, from the step on that begins."""
        module = self.module
        if module is not None and self.reducer is not None:
            self._division.admit()

    # --------------------------------------------------------------------------- a transaction

    def begin(self) -> None:
        """A transaction's first backward begins: torch reduces what is there already, too."""
        self._params = self._found()
        held = {id(param): param.grad for param in self.params if param.grad is not None}
        module = self.module
        views = module is not None and module.gradient_as_bucket_view
        self._division.carry(
            {key: gradient.detach().clone() for key, gradient in held.items()},
            frozenset(gradient.data_ptr() for gradient in held.values() if views),
        )

    def backward_begins(self) -> None:
        """A backward of the script's own begins."""
        self.synced, self.own = False, 0
        self._grads = standing(self.params) if self.still and self._armed else []

    def backward_done(self) -> None:
        """It has ended: note if it was one in which torch reduces these gradients."""
        self.asked = None if self._host.in_schedule else self._armed
        if self.still and self._armed and self._complete():
            self.synced = True
            self._division.include()
        self._armed &= not self.synced
        self._partly = self._armed and bool(self._grads) and self._grads != standing(self.params)
        self._division.expect(self._armed and self.still)

    def _complete(self) -> bool:
        """True if the backward gave a gradient to all parameters of which DDP expects one."""
        now = standing(self.params)
        if len(now) != len(self._grads):
            return False
        changed = [new != old for new, old in zip(now, self._grads, strict=True)]
        return any(changed) if self._division.counts else bool(changed) and all(changed)

    @property
    def carries(self) -> bool:
        """True if gradients held something before the transaction."""
        return any(bool(one.any()) for one in self._division.carried.values())

    def digest(self) -> int:
        """The digest of this rank's gradients as they are now."""
        own = 0
        for place, param in enumerate(self.params):
            own ^= crc_of_gradient(place, param.grad, param)
        return own
