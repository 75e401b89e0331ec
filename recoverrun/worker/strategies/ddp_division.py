"""The division of one DDP module's gradients into buckets of ours.

As DDP divides them, as long as it fills its own. Once it has no part in that any more
(`ddp_reducer_bypass`) they stay as they are, or are one. DDP learns in its first steps how to
divide, and a process that takes a lost rank's place later has not seen these: from the step on in
which it takes part DDP has no part in it on any rank, and others tell the buckets.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ft_collectives.communicators.script_modes import aside
from ft_collectives.step.reducer import Bucket, Reducer
from recoverrun.worker.groups import device_support
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp_buckets import Gradients
from recoverrun.worker.strategies.ddp_reducer_bypass import (
    BucketArrivals,
    BypassedGradients,
    why_never_still,
)


class Division:
    """Registers the buckets with the `reducer`, which is there once gradients are ours."""

    def __init__(self, host: StrategyHost) -> None:
        self._host = host
        self.reducer: Reducer | None = None
        self.hooked = False  # by the script
        self.wire: torch.dtype | None = None  # what the script's hook sends
        self.carried: dict[int, torch.Tensor] = {}  # before the transaction, by parameter
        self.views: frozenset[int] = frozenset()  # see `Gradients`
        self._gradients: dict[tuple[int, ...], Gradients] = {}  # by the bucket's key
        self._still = BypassedGradients(host)
        self._arrivals: BucketArrivals | None = None

    # --------------------------------------------------------------------------- a transaction

    def carry(self, carried: dict[int, torch.Tensor], views: frozenset[int]) -> None:
        """A transaction begins, and gradients hold this; `views` of DDP's buckets lie there."""
        self.carried, self.views = carried, views
        for part in self._gradients.values():
            part.carried, part.views = [carried.get(id(param)) for param in part.params], views

    def begin(self, module: DistributedDataParallel) -> bool:
        """A forward begins. True if DDP has no part in the reduction of its gradients."""
        if self._still.due():
            self._leave_out()
        return self._still.serves(module)

    def expect(self, synced: bool) -> None:
        """Note if the gradients that come now are those of a reduction that DDP has no part in."""
        if self._arrivals is not None:
            self._arrivals.begin(synced)

    def filled(self, module: DistributedDataParallel, bucket: Any) -> None:
        """DDP has filled this bucket."""
        if self._still.gradients:
            return
        assert self.reducer is not None, "protected"
        key = self._known(module, bucket)
        self.reducer.include([key])
        if generation := self._host.final_in():
            self.reducer.offer(key, generation)
        self._still.look(module, bucket, self._gradients.values())

    def include(self) -> None:
        """The transaction reduces all of them."""
        assert self.reducer is not None, "DDP keeps still"
        self.reducer.include(self._gradients)

    @property
    def counts(self) -> bool:
        """True if a step need not bring a gradient of every parameter."""
        return any(part.counts for part in self._gradients.values())

    # --------------------------------------------------------------------------- lost ranks return

    def plan(
        self, module: DistributedDataParallel, params: list[torch.nn.Parameter]
    ) -> list[Any] | str:
        """The places of each bucket's parameters among `params`, as they will be divided from the
        next `admit` on; none as long as nothing was reduced. Or the reason why DDP cannot be left
        out.
        """
        if why := why_never_still(module):
            return why
        if not self._gradients:
            return []
        places = {id(param): place for place, param in enumerate(params)}
        whole, divided = self._still.division(list(self._gradients.values()))
        return [whole, [[places[id(one)] for one in held] for held in divided]]

    def adopt(
        self, module: DistributedDataParallel, params: list[torch.nn.Parameter], plan: list[Any]
    ) -> None:
        """Divide as others do, in a process that takes a lost rank's place."""
        if not plan:
            return
        whole, divided = plan
        # Else DDP would look in its first backward for what is unused, together with the others.
        module._static_graph_delay_allreduce_enqueued = module.static_graph
        for places in divided:
            held = [params[place] for place in places]
            self._register(module, held, held[0])
        self._still.settle(whole)
        self._leave_out()

    def admit(self) -> None:
        """Divide as was planned: such a process takes part from the transaction on that begins."""
        parts = list(self._gradients.values())
        if parts and not self._still.gradients:
            whole, _ = self._still.division(parts)
            self._still.settle(whole)
            self._leave_out()

    # --------------------------------------------------------------------------- buckets

    @aside
    def _leave_out(self) -> None:
        """The gradients are divided as they will be: DDP has no part in them."""
        assert self.reducer is not None, "protected"
        parts = self._still.gradients = list(self._gradients.values())
        if not (self._still.whole or self.counts):
            self._arrivals = BucketArrivals(self._host, self.reducer, dict(self._gradients))
            return
        if self._host.worker.failpoints.armed:
            for param in (one for part in parts for one in part.params):  # some may be unused
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
        self._register(module, params, bucket.buffer())
        return key

    def _register(
        self,
        module: DistributedDataParallel,
        params: list[torch.nn.Parameter],
        like: torch.Tensor,
    ) -> None:
        """A bucket of these, which DDP would reduce in memory of this kind."""
        assert self.reducer is not None, "protected"
        gradients = Gradients(
            params=params,
            replicas=module.process_group.size(),
            counts=module.find_unused_parameters or module.static_graph,
            wire=self.wire,
            divides=self.hooked,
            later=self._host.worker.env.exact,
            carried=[self.carried.get(id(param)) for param in params],
            views=self.views,
        )
        key = tuple(id(param) for param in params)
        self._gradients[key] = gradients
        self.reducer.register(
            Bucket(
                key=key,
                size=gradients.size,
                dtype=self.wire or like.dtype,
                fill=gradients.fill,
                deliver=gradients.deliver,
                carry=gradients.carry,
                apart=gradients.apart,
                device=device_support.staging(like.device),
            )
        )
