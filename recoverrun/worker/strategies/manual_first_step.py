"""The first step of a script that reduces its gradients by hand: it is watched, to learn what is
reduced and how.

It runs as it is. Gradients are kept as the backward left them, so that what is all-reduced can be
compared with them: all of it must be gradients, times one factor. What does not fit is `why` the
script cannot be served, in words that go on after "reduces its gradients by hand, but".
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from recoverrun.worker.context.evidence import crc_of_gradient
from recoverrun.worker.strategies.manual_matching import (
    Factor,
    Reduction,
    common_factor,
    factor_of,
    order_in,
    way_of,
)

TWICE = "gradients are reduced more than once in an optimizer step"
EARLY = "gradients are clipped or scaled before they are reduced"
CHANGED = "gradients are changed before they are reduced"
SEVERAL = "gradients are multiplied by several factors before they are reduced"
ROUNDED = (
    "gradients are multiplied before they are reduced, and rounded in a way of the script's own"
)


class ObservedStep:
    """An optimizer step, from a backward on. What was reduced `before` that makes it unclean."""

    def __init__(
        self, params: Sequence[torch.Tensor], world_size: int, before: "ObservedStep | None" = None
    ) -> None:
        self._world_size = world_size
        self._likely = (1.0, 1 / world_size)
        self.why = ""
        self.reductions: list[Reduction] = []
        self._params = [param for param in params if param.grad is not None]
        self._kept: dict[int, torch.Tensor] = {}
        self._tensors: list[torch.Tensor] = []  # that were reduced
        self._others: list[torch.Tensor] = []  # and that are no gradients
        self._factor: float | None = None
        self._ways = {True, False}  # `Factor.divides`, as far as it is known
        for param in self._params:
            assert param.grad is not None, "just seen"
            self._kept[id(param)] = param.grad.detach().clone()
        if before is not None:
            self._others = before._others
            self.blame(TWICE if before.reductions else before.why)

    @property
    def factor(self) -> Factor:
        """The factor by which gradients are multiplied before they are reduced."""
        return Factor() if self._factor is None else Factor(self._factor, True in self._ways)

    def digest(self) -> int:
        """The digest of this rank's gradients, before anything was reduced."""
        own = 0
        for place, param in enumerate(self._params):
            own ^= crc_of_gradient(place, self._kept[id(param)], param)
        return own

    def blame(self, why: str) -> None:
        """The first reason is the one that is told."""
        self.why = self.why or why

    # --------------------------------------------------------------------------- what is reduced

    def saw(self, tensor: torch.Tensor, param: torch.Tensor | None, op: Any, group: Any) -> None:
        """`tensor` is about to be reduced; it is the gradient of `param`, if one is given."""
        params = [param] if param is not None else self._recognised(tensor)
        if not params:
            self._others.append(tensor)
            return
        if not self.reductions:
            self._look_around()
        if param is not None:
            self._scaled(tensor.detach().view_as(param), param)
        taken = {id(one) for known in self.reductions for one in known.params}
        if taken & {id(one) for one in params}:
            self.blame(TWICE)
        elif not self._is_spanned(group):
            self.blame("gradients are reduced over a part of the world")
        elif op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            self.blame(f"gradients are reduced by {op}")
        averages = op == dist.ReduceOp.AVG
        self.reductions.append(Reduction(params=params, copied=param is None, averages=averages))
        self._tensors.append(tensor)

    def _recognised(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The parameters whose gradients `tensor` holds, none if it holds anything else."""
        room = sum(kept.numel() for kept in self._kept.values())
        if not 0 < tensor.numel() <= room or not tensor.is_contiguous():
            return []
        known = self._likely if self._factor is None else (self._factor,)
        gradients = [self._kept[id(param)] for param in self._params]
        found = order_in(tensor.detach().view(-1), gradients, known)
        if found is None:
            return []
        order, factor = found
        if tensor.any():
            before = torch.cat([gradients[place].flatten() for place in order])
            self._agree(factor, tensor.detach().view(-1), before)
        return [self._params[place] for place in order]

    def _look_around(self) -> None:
        """The first reduction will be the commit point: note what the gradients are then."""
        for param in self._params:
            if param.grad is None:
                self.blame(CHANGED)
            elif not torch.equal(param.grad, self._kept[id(param)]):
                self._scaled(param.grad, param)

    def _scaled(self, gradient: torch.Tensor, param: torch.Tensor) -> None:
        kept = self._kept.get(id(param))
        factor = None if kept is None else factor_of(gradient.detach(), kept, self._likely)
        if kept is None or factor is None:
            self.blame(CHANGED)
        elif kept.any():
            self._agree(factor, gradient.detach().view_as(kept), kept)

    def _agree(self, factor: float, now: torch.Tensor, before: torch.Tensor) -> None:
        if self._factor not in (None, factor):
            self.blame(SEVERAL)
        self._factor = factor
        self._ways.intersection_update(way_of(now, before, factor))
        if not self._ways:
            self.blame(ROUNDED)

    # --------------------------------------------------------------------------- its end

    def conclude(self, params: Sequence[torch.Tensor]) -> str:
        """The optimizer steps: returns why the next step cannot be served, or ""."""
        reduced = {id(one) for known in self.reductions for one in known.params}
        if any(param.grad is not None and id(param) not in reduced for param in params):
            self.blame("some gradients are not reduced")
        if any(param.device.type != "cpu" for param in params):
            self.blame("an accelerator is not served yet, only the CPU")
        copies = [one for one in self.reductions if one.copied]
        if any(one.fits(other) for one in copies for other in self._others):
            self.blame("something else of the same size is reduced, too")
        if not self.why and copies and self._left_alone():
            self.blame("what is reduced is not copied back to them")
        return self.why

    def _left_alone(self) -> bool:
        """True if copied gradients are still this rank's own, not the result of the reduction."""
        own, reduced = [], []
        for known, tensor in zip(self.reductions, self._tensors, strict=True):
            for param, piece in known.pieces(tensor) if known.copied and known.fits(tensor) else ():
                assert param.grad is not None, "live"
                own.append((param.grad.detach(), self._kept[id(param)]))
                reduced.append((param.grad.detach(), piece))
        return not math.isnan(common_factor(own)) and math.isnan(common_factor(reduced))

    def _is_spanned(self, group: Any) -> bool:
        known = group in (None, dist.group.WORLD)
        return known or len(dist.get_process_group_ranks(group)) == self._world_size
