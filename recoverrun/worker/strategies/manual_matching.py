"""The gradients of which a script's all-reduce by hand is made.

    flat = torch.cat([param.grad.view(-1) for param in model.parameters()]) / world_size
    dist.all_reduce(flat)

A tensor is recognised by what it holds: gradients as the backward left them, one after the other,
in any order, all multiplied by one factor. So it does not matter how a script makes it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

EVEN = 1e-4
"""How far, relative to their norm, gradients may be from a multiple of what they were."""


@dataclass(slots=True, eq=False, kw_only=True)
class Reduction:
    """One all_reduce of gradients in the watched step: of `params`, in this order."""

    params: list[torch.Tensor]
    copied: bool  # into a tensor that is not the gradient itself
    averages: bool

    @property
    def live(self) -> list[torch.Tensor]:
        return [param for param in self.params if param.grad is not None]

    def fits(self, tensor: torch.Tensor) -> bool:
        """True if this step's gradients may be in `tensor`, by its size and type."""
        live = self.live
        same = bool(live) and live[0].dtype == tensor.dtype and tensor.is_contiguous()
        return same and sum(param.numel() for param in live) == tensor.numel()

    def pieces(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters, and what `tensor` holds for them: what is written there, it holds."""
        if not self.copied:
            return [(self.params[0], tensor.detach().view_as(self.params[0]))]
        flat = tensor.detach().view(-1).split([param.numel() for param in self.live])
        return [
            (param, piece.view(param.shape)) for param, piece in zip(self.live, flat, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Factor:
    """The factor of gradients before the script reduces them, and its way to apply it."""

    value: float = 1.0
    divides: bool = True  # by the inverse; the bits may differ

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        """Multiply in place."""
        if self.value == 1:
            return gradient
        return gradient.div_(_inverse(self.value)) if self.divides else gradient.mul_(self.value)


def way_of(now: torch.Tensor, gradient: torch.Tensor, factor: float) -> list[bool]:
    """The ways (`Factor.divides`) that give every bit of `now`."""
    ways = (Factor(factor, divides) for divides in (True, False))
    return [
        one.divides
        for one in ways
        if torch.allclose(one.apply(gradient.clone()), now, rtol=0.0, atol=0.0, equal_nan=True)
    ]


def _inverse(factor: float) -> float:
    """The number of ranks, say, where `factor` is its inverse."""
    whole = round(1 / factor)
    return float(whole) if whole and 1 / whole == factor else 1 / factor


@dataclass(frozen=True, slots=True)
class Mark:
    """The sum and the norm of a gradient: they tell it from a changed one without keeping it."""

    total: float
    norm: float
    slack: tuple[float, float]  # by which roundings may move them

    @property
    def tells(self) -> bool:
        """True if the gradient can be told from its own multiples."""
        return math.isfinite(self.norm) and self.norm > 0

    def times(self, factor: float, other: "Mark") -> bool:
        """True if `other` is this gradient, multiplied by `factor`."""
        if not math.isfinite(self.norm):
            return not math.isfinite(other.norm)
        off = abs(other.total - factor * self.total), abs(other.norm - abs(factor) * self.norm)
        return all(one <= abs(factor) * slack for one, slack in zip(off, self.slack, strict=True))


def mark(gradient: torch.Tensor, factor: float) -> Mark:
    """The mark, to compare with multiples by `factor`, which are rounded unless it is 1."""
    values = gradient.detach()
    root = math.sqrt(values.numel())
    if factor == 1:
        kind = torch.promote_types(values.dtype, torch.float32)
        rounding = torch.finfo(kind).eps * (1 + root / 64)  # of sums in another order
    else:
        kind = torch.float64
        rounding = torch.finfo(values.dtype).eps
    norm = float(torch.linalg.vector_norm(values, dtype=kind))
    slack = (8 * rounding * root * norm, 4 * rounding * norm)
    return Mark(float(values.sum(dtype=kind)), norm, slack)


def is_multiple(now: torch.Tensor, gradient: torch.Tensor, factor: float) -> bool:
    """True if every element of `now` is that of `gradient` times `factor`, to rounding."""
    kind = torch.finfo(gradient.dtype)
    if factor == 1:
        return torch.allclose(now, gradient, rtol=0.0, atol=0.0, equal_nan=True)
    scaled = gradient * factor
    return torch.allclose(now, scaled, rtol=4 * kind.eps, atol=4 * kind.tiny, equal_nan=True)


def factor_of(now: torch.Tensor, gradient: torch.Tensor, likely: Sequence[float]) -> float | None:
    """The factor that makes `now` of `gradient`, if there is one that all ranks will find.

    Other than a `likely` one it is not found in half precision.
    """
    for factor in likely:
        if is_multiple(now, gradient, factor):
            return factor
    found = simplest(common_factor([(now, gradient)]), torch.finfo(gradient.dtype).eps)
    return found if found is not None and is_multiple(now, gradient, found) else None


def simplest(factor: float, rounding: float) -> float | None:
    """The simplest fraction near `factor`, which was found in numbers rounded to `rounding`.

    None if it could be another one as well.
    """
    if not math.isfinite(factor) or not factor:
        return None
    if abs(math.frexp(factor)[0]) == 0.5:
        return factor  # a power of two leaves all digits as they are
    slack = max(rounding, 1e-9)
    for limit in (1, 10, 100, 1000):
        for value, inverse in ((1 / factor, True), (factor, False)):
            near = Fraction(value).limit_denominator(limit)
            if abs(near - value) <= slack * abs(value) and slack * abs(value) * limit**2 < 0.1:
                return float(1 / near if inverse else near)
    return None


def order_in(
    flat: torch.Tensor, gradients: Sequence[torch.Tensor], factors: Sequence[float]
) -> tuple[list[int], float] | None:
    """The indices of `gradients` that are in `flat`, in their order there, and their factor.

    One of `factors`, or any other if there is more than one number to find it by.
    """
    for factor in factors:
        found = _walk(flat, gradients, factor)
        if found is not None:
            return found, factor
    for gradient in gradients:
        if 1 < gradient.numel() <= flat.numel() and gradient.dtype == flat.dtype:
            first = flat[: gradient.numel()].view(gradient.shape)
            other = factor_of(first, gradient, factors)
            if other is not None and other not in factors and bool(gradient.any()):
                found = _walk(flat, gradients, other)
                if found is not None:
                    return found, other
    return None


def _walk(flat: torch.Tensor, kept: Sequence[torch.Tensor], factor: float) -> list[int] | None:
    """Gradients that are alike are taken in their own order."""
    found: list[int] = []
    offset = 0
    while offset < flat.numel():
        following = found[-1] + 1 if found else 0
        for place in [*range(following, len(kept)), *range(following)]:
            gradient = kept[place]
            end = offset + gradient.numel()
            if place in found or end > flat.numel() or gradient.dtype != flat.dtype:
                continue
            if is_multiple(flat[offset:end].view(gradient.shape), gradient, factor):
                found.append(place)
                offset = end
                break
        else:
            return None
    return found


def common_factor(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The factor by which the first of each pair is a multiple of the second, NaN if it is none."""
    square = sum(float(b.double().square().sum()) for _, b in pairs)
    if not square:
        return 1.0
    factor = sum(float((a.double() * b.double()).sum()) for a, b in pairs) / square
    rest = sum(float((a.double() - factor * b.double()).square().sum()) for a, b in pairs)
    if not rest <= (EVEN * factor) ** 2 * square:
        return float("nan")
    return 1.0 if abs(factor - 1) < 1e-7 and rest == 0 else factor
