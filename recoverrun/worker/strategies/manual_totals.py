"""The gradients of a step that the script reduces by hand: what they were, and their sums.

Each gradient is marked as its backward ends, and compared when the script reduces it: it must still
be what it was, times the factor of the first step. What is reduced at the commit point, which is
the first reduction, are gradients that are multiplied already: by the script, or here as the script
would, so that every bit is the same; microbatches that are made up are multiplied, too. The
script's own calls are answered with the sums. Until then its gradients are left as they are.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ft_collectives.step.reducer import Bucket, Reducer
from recoverrun.worker.strategies.manual_matching import Factor, Mark, Reduction, mark
from recoverrun.worker.strategies.memory_order import laid_out

LATER = "recoverrun: {}, unlike in the first step; run it with RECOVERRUN_PROTECT=0"
UNLIKE = "gradients are changed before they are reduced"


class Sums:
    """The sums of `params`, which are reduced in `reductions`, multiplied by `factor` before."""

    def __init__(
        self,
        params: list[torch.Tensor],
        reductions: list[Reduction],
        *,
        factor: Factor,
        world_size: int,
    ) -> None:
        self.params = params
        self._multiply = factor
        self.factor = factor.value
        self._world_size = world_size
        self._reductions = reductions
        self._open: list[Reduction] = []  # not asked for yet in this step
        self._marks: dict[int, Mark] = {}  # of this rank's gradients, by parameter
        self.scaled: list[torch.Tensor] = []  # whose gradients are multiplied at the commit point
        self._totals: dict[int, torch.Tensor] = {}  # over all replicas, by parameter

    # --------------------------------------------------------------------------- lost ranks return

    def told(self, every: Sequence[torch.Tensor]) -> list[Any]:
        """For a process that comes later, as plain values: parameters by their place in `every`."""
        places = {id(param): place for place, param in enumerate(every)}
        reductions = [
            [[places[id(param)] for param in one.params], one.copied, one.averages]
            for one in self._reductions
        ]
        factor = [self._multiply.value, self._multiply.divides]
        return [[places[id(param)] for param in self.params], reductions, factor]

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
            factor=Factor(*factor),
            world_size=world_size,
        )

    @property
    def terms(self) -> str:
        """The facts that all ranks must have found alike."""
        return f"{self.factor} {self._multiply.divides}"

    # --------------------------------------------------------------------------- a step

    def begin(self) -> None:
        """A backward has ended."""
        live = [param for param in self.params if param.grad is not None]
        self._marks = {id(param): self._mark(param.grad) for param in live}
        self._open, self.scaled = list(self._reductions), []

    def end(self) -> None:
        """The step is dropped."""
        self._open = []

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
        should be. Called before anything is reduced.
        """
        for param, piece in reduction.pieces(tensor):
            if not self._marks[id(param)].times(self.factor, self._mark(piece)):
                return True
        self.scaled = []
        for param in every:
            if param.grad is None:
                continue
            known = self._marks.get(id(param))
            if known is None:
                return True  # it had none in the first step
            now = self._mark(param.grad)
            if self.factor != 1 and known.times(self.factor, now):
                self.scaled.append(param)
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
        self.scaled = []
        self._marks = {id(p): self._mark(p.grad) for p in self.params if p.grad is not None}

    # --------------------------------------------------------------------------- reduction

    def buckets(self) -> list[Bucket]:
        """One for each of the script's reductions: elements are added up in its order, and as many
        of them as it has in this step.
        """
        return [
            Bucket(
                key=place,
                size=sum(param.numel() for param in params),
                dtype=params[0].dtype,
                fill=functools.partial(self._fill, params, one.copied),
                deliver=functools.partial(self._deliver, params, one.copied),
            )
            for place, one in enumerate(self._reductions)
            for params in [one.live or one.params]
        ]

    def register(self, reducer: Reducer) -> None:
        """Let `reducer` reduce what there is in this step."""
        for bucket in self.buckets():
            reducer.register(bucket)

    def _fill(self, params: list[torch.Tensor], copied: bool, staging: torch.Tensor) -> None:
        scaled = {id(param) for param in self.scaled}
        for param, part in zip(params, _parts(params, copied, staging), strict=True):
            if param.grad is None:
                part.zero_()
                continue
            part.copy_(param.grad)
            if id(param) not in scaled:
                self._multiply.apply(part)

    def _deliver(self, params: list[torch.Tensor], copied: bool, total: torch.Tensor) -> None:
        for param, part in zip(params, _parts(params, copied, total), strict=True):
            self._totals[id(param)] = part  # of the reducer, which leaves it until the next step

    def answer(self, reduction: Reduction, tensor: torch.Tensor, committed: bool) -> None:
        """`tensor` becomes what the script's own call would have made of it.

        It was compared already if the step was `committed` by this very call.
        """
        self._open.remove(reduction)
        for param, piece in reduction.pieces(tensor):
            own, total = self._marks[id(param)], self._totals[id(param)]
            if own.tells and not committed and not own.times(self.factor, self._mark(piece)):
                raise RuntimeError(LATER.format(UNLIKE))
            piece.copy_(total)
            if reduction.averages:
                piece.div_(self._world_size)  # INV-8: of the original world


def _parts(params: list[torch.Tensor], copied: bool, flat: torch.Tensor) -> list[torch.Tensor]:
    """A view of `flat` for every parameter; a gradient that is not copied into a tensor of the
    script's is reduced in the order of its memory.
    """
    parts = zip(flat.split([param.numel() for param in params]), params, strict=True)
    return [part.view_as(param) if copied else laid_out(part, param) for part, param in parts]
