"""The bound on how far two runs may drift apart when only the order of fp32 sums differs.

A survivor that takes over microbatches computes the very gradients that the lost replica would
have computed, but they enter the sum in another order. This is what that may do to the weights.

Proved, per element of a weight; u = 2**-24 is the unit roundoff of fp32:

1.  Two orders of a sum of n terms differ by at most 2 * gamma(n - 1) * sum|g|, with
    gamma(k) = k*u / (1 - k*u) (Higham, Accuracy and Stability, 4.4). We take n = B + 2: the B
    microbatches and two divisions. Within a replica the order of sums never changes.
2.  Clipping scales all gradients by one factor. Its relative error is at most that of the norm,
    2 * gamma * ||sum|g||| / ||g||.
3.  Adam's moments are weighted means of the last gradients. If each of these is off by at most e,
    then the first moment is off by at most e, and the root of the second, which is a norm, by at
    most e too (the triangle inequality). So the update m / (sqrt(v) + eps) is off by at most
    (1 + U) * e / sqrt(v), where U = max |m| / sqrt(v), which Cauchy and Schwarz give as
    sqrt(sum a_k**2 / b_k) for the weights a_k and b_k of the two means.
4.  The arithmetic of the optimizer adds a few u of its own to the update and to the weight.

A model, because no closed bound exists (tests/numerics measures each of them on a real run):

5.  sum|g| / sqrt(v) <= 4 * B: how much more the gradients of an element cancel within a step than
    over the optimizer's memory. Independent noise gives sqrt(B) with a long tail: 1.01 * B was the
    largest of 0.85 million elements. For norms, where the tail averages out, sqrt(B).
6.  A difference that is there acts on later gradients: a step at the peak learning rate makes it
    grow by at most 10 %, a step at a lower rate by proportionally less.

A single missing microbatch moves weights by a visible part of the learning rate, thousands of times
this bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNIT_ROUNDOFF = 2.0**-24

GROWTH = 0.1
"""Growth of a difference in one step at the peak learning rate: a model, see above."""

CANCELLATION = 4
"""Largest sum|g| / sqrt(v) of an element, in units of B: a model, see above."""

UPDATE_ROUNDINGS = 64
"""Roundings of fp32 in one update of Adam, the memory of its moments included; generous."""

WEIGHT_ROUNDINGS = 4
"""Weight decay and update: two roundings of the weight in each of the two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The part of a training run after the first loss, as the bound needs it."""

    rates: tuple[float, ...]  # learning rate of each step from the first loss on
    terms: int  # B, microbatches per step
    betas: tuple[float, float] = (0.9, 0.95)


def gamma(roundings: int) -> float:
    return roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)


def largest_update(betas: tuple[float, float], steps: int = 1000) -> float:
    """U: the most that Adam's update, in units of the learning rate, can ever be."""
    beta1, beta2 = betas
    first = second = total = worst = 0.0
    for k in range(steps):
        first += beta1**k
        second += beta2**k
        total += (beta1 * beta1 / beta2) ** k
        # a_k = beta1**k / first and b_k = beta2**k / second for a memory of k + 1 gradients.
        worst = max(worst, math.sqrt(total * second) / first)
    return worst


def step_bounds(course: Course, weight: float) -> Sequence[float]:
    """The bound of each step on what it adds to a difference of a weight whose last value is
    `weight`.
    """
    u_max = largest_update(course.betas)
    cancellation = CANCELLATION * course.terms
    sums = 2 * gamma(course.terms + 1) * cancellation * (1 + math.sqrt(course.terms))
    update = (1 + u_max) * sums + UPDATE_ROUNDINGS * UNIT_ROUNDOFF
    # The weight was smaller or larger on the way, by no more than all updates together.
    magnitude = abs(weight) + u_max * sum(course.rates)
    rounding = WEIGHT_ROUNDINGS * UNIT_ROUNDOFF * magnitude
    return [rate * update + rounding for rate in course.rates]


def weight_bound(course: Course, weight: float) -> float:
    """The most that a weight may differ at the end; `weight` is its largest magnitude there."""
    peak = max(course.rates, default=0.0)
    difference = 0.0
    for rate, added in zip(course.rates, step_bounds(course, weight), strict=True):
        difference = difference * (1 + GROWTH * rate / peak) + added
    return difference
