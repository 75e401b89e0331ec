"""The cases in which `ddp` has no use for DDP's reducer: copies into its buckets and back are
saved.

DDP divides the gradients into buckets, anew once after a step. From then on they are ours:

| gradients | reduced |
|---|---|
| in one bucket of DDP's | at the commit point |
| of several buckets | in DDP's buckets and order, each once its last gradient is there |
| of several, with `find_unused_parameters` or `static_graph` | when DDP's hook gives them to us |
| with `gradient_as_bucket_view` | the same |

Once a lost replica comes back, DDP has no part in any of them: what it learns of them in its first
steps, a fresh process cannot know. The last two are then reduced at the commit point.

DDP's buckets are never put together: gloo adds up an element in an order that depends on how many
are reduced with it, and a run without a loss has torch's sums. Where DDP is left out, so is its
search for unused parameters.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ft_collectives.step.reducer import Reducer
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp_buckets import Gradients

MIXED = "DDP trains in mixed precision of its own, and casts gradients as it reduces them"
DELAYED = "DDP reduces some of the gradients by itself (delay_all_reduce_named_params)"


class BypassedGradients:
    """The gradients that DDP has no part in, from the step after it has settled its buckets."""

    def __init__(self, host: StrategyHost) -> None:
        self._host = host
        self._parts: list[Gradients] = []
        self._looked = False
        self._from_step = 0
        self.whole = False  # there is one bucket
        self.gradients: list[Gradients] = []  # none as long as DDP has a part in them

    def look(
        self, module: DistributedDataParallel, bucket: Any, parts: Iterable[Gradients]
    ) -> None:
        """DDP has filled this bucket; `parts` are all up to it."""
        if self._looked or not bucket.is_last() or not _settled(module):
            return
        self._looked, known = True, list(parts)
        self.whole = len(known) == 1
        if not _special(module) and (self.whole or not known[0].counts):
            # Not in the step that has begun: others may have launched some of its buckets.
            self._parts, self._from_step = known, self._host.worker.step + 1

    def division(self, parts: Sequence[Gradients]) -> tuple[bool, list[list[torch.nn.Parameter]]]:
        """The buckets where DDP has no part: True if they are one, and the parameters of each; now
        gradients are in `parts`.
        """
        if self.gradients:
            return self.whole, [part.params for part in self.gradients]
        return len(parts) == 1, [part.params for part in parts]

    def settle(self, whole: bool) -> None:
        """Others have seen it, before this process began or in this step."""
        self._looked, self.whole = True, whole

    def due(self) -> list[Gradients]:
        """DDP's buckets, where its part in them ends before the forward that begins."""
        host = self._host
        fresh = host.worker.step >= self._from_step and not host.worker.runtime.microbatches
        return self._parts if fresh and not self.gradients else []

    def serves(self, module: DistributedDataParallel) -> bool:
        """True if DDP has nothing to do with the reduction of this forward's gradients."""
        if not self.gradients or module._join_config.enable:
            return False
        # Without find_unused_parameters DDP itself complains about missing gradients.
        return all(part.counts or not part.lacking for part in self.gradients)


class BucketArrivals:
    """Offers each bucket once all of its gradients have arrived in a synchronising backward.

    Without `find_unused_parameters` and `static_graph` every parameter gets one gradient in a
    backward; DDP raises an error in the first steps of a script that does otherwise.
    """

    def __init__(
        self,
        host: StrategyHost,
        reducer: Reducer,
        buckets: dict[tuple[int, ...], Gradients],
    ) -> None:
        self._host = host
        self._reducer = reducer
        self._buckets = buckets
        self._missing: dict[tuple[int, ...], set[int]] = {}  # none: nobody waits for them
        for key, part in buckets.items():
            for param in part.params:
                param.register_post_accumulate_grad_hook(partial(self._arrived, key))

    def begin(self, synced: bool) -> None:
        """A forward begins, or a backward has ended: note if the gradients that come now are
        `synced`.
        """
        self._missing = {key: set(key) for key in self._buckets} if synced else {}

    def _arrived(self, key: tuple[int, ...], param: torch.Tensor) -> None:
        host = self._host
        if not self._missing or host.worker.acting or not host.worker.runtime.active:
            return
        missing = self._missing[key]
        if id(param) not in missing:
            raise RuntimeError(
                "a parameter got a second gradient in one backward pass, as with reentrant "
                "checkpoints: DDP serves that with static_graph=True only"
            )
        missing.remove(id(param))
        if missing:
            return
        host.bucket_reached()
        self._reducer.include(self._buckets)
        if generation := host.final_in():
            self._reducer.offer(key, generation)


def why_never_still(module: DistributedDataParallel) -> str:
    """The reason why DDP has to have a part in each reduction, or ""."""
    if module.mixed_precision is not None:
        return MIXED
    return DELAYED if module._delay_all_reduce_params else ""


def _settled(module: DistributedDataParallel) -> bool:
    """True once DDP has divided the parameters into buckets anew, as it does once after a step."""
    once = module.find_unused_parameters and not module.static_graph
    return bool(once or module._has_rebuilt_buckets)


def _special(module: DistributedDataParallel) -> bool:
    return bool(module.gradient_as_bucket_view or why_never_still(module))
