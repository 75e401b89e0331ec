"""The gradients of a step that the script reduces by hand: what they were, and their sums.

Each gradient is marked as its backward ends, and compared when the script reduces it: it must still
be what it was, times the factor of the first step. The commit point, which is the first reduction,
undoes that factor, as microbatches that are made up are added to what was not multiplied; the
script's own calls are answered with the sums, times the factor.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from ft_collectives.step.reducer import Bucket
from recoverrun.worker.strategies.manual_matching import Mark, Reduction, mark

LATER = "recoverrun: {}, unlike in the first step; run it with RECOVERRUN_PROTECT=0"
UNLIKE = "gradients are changed before they are reduced"


class Sums:
    """The sums of `params`, which are reduced in `reductions`, multiplied by `factor` before."""

    def __init__(
        self,
        params: list[torch.Tensor],
        reductions: list[Reduction],
        *,
        factor: float,
        world_size: int,
    ) -> None:
        self.params = params
        self.factor = factor
        self._world_size = world_size
        self._reductions = reductions
        self._open: list[Reduction] = []  # not asked for yet in this step
        self._marks: dict[int, Mark] = {}  # of this rank's gradients, by parameter
        self._scaled: list[torch.Tensor] = []  # whose gradients are multiplied at the commit point
        self._totals: dict[int, torch.Tensor] = {}  # over all replicas, by parameter

    # --------------------------------------------------------------------------- lost ranks return

    def told(self, every: Sequence[torch.Tensor]) -> list[Any]:
        """For a process that comes later, as plain values: parameters by their place in `every`."""
        places = {id(param): place for place, param in enumerate(every)}
        reductions = [
            [[places[id(param)] for param in one.params], one.copied, one.averages]
            for one in self._reductions
        ]
        return [[places[id(param)] for param in self.params], reductions, self.factor]

    @staticmethod
    def as_told(told: list[Any], every: Sequence[torch.Tensor], world_size: int) -> "Sums":
        """The sums as others have told them, in such a process, whose parameters are `every`."""
        params, reductions, factor = told
        return Sums(
            [every[place] for place in params],
            [
                Reduction(params=[every[place] for place in places], copied=copied, averages=mean)
                for places, copied, mean in reductions
            ],
            factor=factor,
            world_size=world_size,
        )

    # --------------------------------------------------------------------------- a step

    def begin(self) -> None:
        """A backward has ended."""
        live = [param for param in self.params if param.grad is not None]
        self._marks = {id(param): self._mark(param.grad) for param in live}
        self._open = list(self._reductions)

    def end(self) -> None:
        """The step is dropped."""
        self._open = []

    @property
    def rounds(self) -> bool:
        """True if to multiply by the factor, and to undo that, may change the last bit."""
        return math.frexp(self.factor)[0] != 0.5

    @property
    def unasked(self) -> bool:
        """True if some gradients were not reduced yet."""
        return any(one.live for one in self._open)

    def asked(self, tensor: torch.Tensor, param: torch.Tensor | None) -> Reduction | None:
        """The first step's reduction of `tensor`, the gradient of `param`, if there was one.

        What it holds does not tell: all ranks have to say the same.
        """
        for one in self._open:
            if one.params[0] is param if not one.copied else one.fits(tensor):
                return one
        return None

    def _mark(self, gradient: torch.Tensor | None) -> Mark:
        assert gradient is not None, "live"
        return mark(gradient, self.factor)

    # --------------------------------------------------------------------------- the commit point

    def uneven(
        self, reduction: Reduction, tensor: torch.Tensor, every: Sequence[torch.Tensor]
    ) -> bool:
        """True if anything else is in `tensor`, or in the gradients of `every` parameter, than
        should be.

        Called before anything is reduced, and before `undo`.
        """
        for param, piece in reduction.pieces(tensor):
            if not self._marks[id(param)].times(self.factor, self._mark(piece)):
                return True
        self._scaled = []
        for param in every:
            if param.grad is None:
                continue
            known = self._marks.get(id(param))
            if known is None:
                return True  # it had none in the first step
            now = self._mark(param.grad)
            if self.factor != 1 and known.times(self.factor, now):
                self._scaled.append(param)
            elif not known.times(1.0, now):
                return True
        return False

    def adopt(self, reduction: Reduction, tensor: torch.Tensor) -> None:
        """Let uneven gradients be this rank's part, as the script means them to be."""
        if self.factor != 1:
            raise RuntimeError(LATER.format(f"{UNLIKE}, and multiplied"))
        for param, piece in reduction.pieces(tensor) if reduction.copied else ():
            assert param.grad is not None, "live"
            param.grad.copy_(piece)
        self._scaled = []
        self._marks = {id(p): self._mark(p.grad) for p in self.params if p.grad is not None}

    def undo(self) -> None:
        """Multiply no more what was multiplied."""
        for param in self._scaled:
            assert param.grad is not None, "live"
            param.grad.mul_(1 / self.factor)

    # --------------------------------------------------------------------------- reduction

    def buckets(self) -> list[Bucket]:
        """One for each of the script's reductions: elements are added up in its order."""
        return [
            Bucket(
                key=place,
                size=sum(param.numel() for param in one.params),
                dtype=one.params[0].dtype,
                fill=functools.partial(_fill, one.params),
                deliver=functools.partial(self._deliver, one.params),
            )
            for place, one in enumerate(self._reductions)
        ]

    def _deliver(self, params: list[torch.Tensor], total: torch.Tensor) -> None:
        scaled = {id(param) for param in self._scaled}
        for param, part in zip(params, _parts(params, total), strict=True):
            self._totals[id(param)] = part  # of the reducer, which leaves it until the next step
            if param.grad is not None:
                param.grad.copy_(part)
                if id(param) in scaled:
                    param.grad.mul_(self.factor)

    def answer(self, reduction: Reduction, tensor: torch.Tensor, committed: bool) -> None:
        """`tensor` becomes what the script's own call would have made of it.

        It was compared already if the step was `committed` by this very call.
        """
        self._open.remove(reduction)
        for param, piece in reduction.pieces(tensor):
            own, total = self._marks[id(param)], self._totals[id(param)]
            if own.tells and not committed:
                now = self._mark(piece)
                early = reduction.copied and own.times(self.factor, now)
                if not early and not self._mark(total).times(self.factor, now):
                    raise RuntimeError(LATER.format(UNLIKE))
            piece.copy_(total)
            if self.factor != 1:
                piece.mul_(self.factor)
            if reduction.averages:
                piece.div_(self._world_size)  # INV-8: of the original world


def _parts(params: list[torch.Tensor], flat: torch.Tensor) -> list[torch.Tensor]:
    parts = flat.split([param.numel() for param in params])
    return [part.view_as(param) for part, param in zip(parts, params, strict=True)]


def _fill(params: list[torch.Tensor], staging: torch.Tensor) -> None:
    for param, part in zip(params, _parts(params, staging), strict=True):
        if param.grad is None:
            part.zero_()
        else:
            part.copy_(param.grad)
