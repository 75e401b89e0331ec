"""When `ddp` has no use for DDP's buckets: all gradients are one, reduced at the commit point.

DDP overlaps its reduction with the backward bucket by bucket; the one that is filled last has
nothing to hide behind. Gradients that fit into one bucket of DDP's own size are that last one, but
for the small first bucket that DDP begins with. So they are reduced as one, and DDP is left out:
its copies into its buckets and back are saved, and where it looks for unused parameters, that
search and its collective.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from recoverrun.hooks.session import Session
from recoverrun.hooks.strategies.ddp_buckets import Gradients


class Whole:
    """All gradients of the served module, from the step after DDP has settled its buckets."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._params: list[torch.nn.Parameter] = []
        self._looked = False
        self._from_step = 0
        self.gradients: Gradients | None = None  # once they are reduced as one

    def look(
        self, module: DistributedDataParallel, bucket: Any, parts: Iterable[Gradients]
    ) -> None:
        """DDP has filled this bucket; `parts` are all up to it."""
        if self._looked or not bucket.is_last() or not _settled(module):
            return
        self._looked, known = True, list(parts)
        params = [param for part in known for param in part.params]
        if not _special(module) and (len(known) == 1 or _fits(module, params)):
            # Not in the step that has begun: others may have launched some of its buckets.
            self._params, self._from_step = params, self._session.step + 1

    def due(self) -> list[torch.nn.Parameter]:
        """All parameters in DDP's order, where they become one bucket with this forward."""
        session = self._session
        fresh = session.step >= self._from_step and not session.microbatch
        return self._params if fresh and self.gradients is None else []

    def serves(self, module: DistributedDataParallel) -> bool:
        """Whether DDP has nothing to do with the reduction of this forward's gradients."""
        if self.gradients is None or module._join_config.enable:
            return False
        # Where it was not told that parameters may be unused, it has a word to say about that.
        return self.gradients.counts or not self.gradients.lacking


def _settled(module: DistributedDataParallel) -> bool:
    """DDP is done with dividing the parameters into buckets: it does so anew after a step, once."""
    once = module.find_unused_parameters and not module.static_graph
    return bool(once or module._has_rebuilt_buckets)


def _special(module: DistributedDataParallel) -> bool:
    return bool(
        module.gradient_as_bucket_view
        or module.mixed_precision is not None
        or module._delay_all_reduce_params
    )


def _fits(module: DistributedDataParallel, params: Iterable[torch.nn.Parameter]) -> bool:
    kinds = {(param.dtype, param.device) for param in params}
    size = sum(param.numel() * param.element_size() for param in params)
    return len(kinds) == 1 and size <= module.bucket_bytes_cap
