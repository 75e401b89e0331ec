"""The results that the canary scripts must have, computed in one process, and how far rounding may
lead.

The oracle trains the model of a canary script with plain torch: no processes, no collectives, no
code of ours. Every rank is a lane with its own data and random stream; a step sums the gradients of
all lanes in any order that a test asks for, or with a microbatch missing.

The bound on |Δw| of two runs that sum the same gradients in different orders. u = 2**-53 is the
unit roundoff of float64, n the number of gradients in a step (ranks times accumulation).

1.  Reassociation. Each order of a sum of n terms is within gamma(n - 1) * sum|g| of the true sum,
    gamma(k) = k*u / (1 - k*u) (Higham, Accuracy and Stability, 4.2), so two orders differ by at
    most twice that. Dividing by the accumulation, the shards and the replicas adds at most three
    roundings to each term: e = 2 * gamma(n + 2) * sum|g|, element by element. Where each microbatch
    is reduced, what those before it left is divided again: two more for each. The gradients of one
    microbatch are the same bits wherever it is computed. Clipping at 1e6 multiplies by exactly 1.
2.  Adam. Its moments are weighted means of the gradients so far. If each of these is off by at most
    e, the first moment is off by at most e and the root of the second, a norm, by at most e. With
    U >= |m| / sqrt(v) from Cauchy and Schwarz, m / (sqrt(v) + eps) is off by at most
    (1 + U) * e / (sqrt(v) + eps): a step at rate lr adds at most lr times that to |Δw|. The oracle
    knows sum|g| and v, so that this is a number and not a model.
3.  The optimizer's own arithmetic: fewer than 64 roundings of an update, 4 of a weight.
4.  Growth. What becomes of a difference until the end is measured: the oracle pushes all weights by
    1e-7, up or down, before the first step and before a later one, and looks at the largest |Δw| at
    the end. This is the one part that is not proved, so the bound allows ten times as much.

`bound` adds up 1 to 3 for every step and multiplies by 4. It is some 1e-10; a microbatch that is
missing once moves weights by some 1e-3 (test_canaries.py).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.e2e.jobs import Job
from tests.e2e.scripts import canary_ddp, canary_hsdp

torch.set_num_threads(1)  # The runs that are compared need the cores more than this does.

UNIT_ROUNDOFF = 2.0**-53
RATE, BETAS, EPSILON = 1e-2, (0.9, 0.999), 1e-8
UPDATE_ROUNDINGS, WEIGHT_ROUNDINGS = 64, 4
PUSH = 1e-7
ALLOWANCE = 10

Identity = tuple[int, int]  # (rank, index): one gradient of one rank
Batches = Iterator[tuple[Tensor, Tensor]]


def gamma(roundings: int) -> float:
    return roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)


def largest_update(steps: int) -> float:
    """U of the bound, for the first `steps` steps."""
    worst = 0.0
    for t in range(1, steps + 1):
        a, b = ([(1 - beta) * beta**k / (1 - beta**t) for k in range(t)] for beta in BETAS)
        worst = max(worst, math.sqrt(sum(x * x / y for x, y in zip(a, b, strict=True))))
    return worst


@dataclass
class Lane:
    """The draws of one rank: its data and its random numbers."""

    rank: int
    batches: Batches
    state: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        torch.manual_seed(100 + self.rank)
        self.state = torch.get_rng_state()


class Training:
    """One run of a canary script, in this process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.step = 0
        make = _make_ddp if job.script == "canary_ddp.py" else _make_hsdp
        self.model, batches = make(job)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.weights = list(self.model.parameters())
        self.lanes = [Lane(rank, batches(rank)) for rank in range(job.ranks)]
        self.optimizer = torch.optim.AdamW(self.weights, lr=RATE)
        self.absolute: list[Tensor] = []  # sum|g| of the newest step

    def advance(self, *, without: Identity | None = None, backwards: bool = False) -> None:
        """Make one step; `backwards` sums in the opposite order of (rank, index)."""
        gradients = {identity: self._gradient(identity) for identity in self._identities()}
        order = sorted(gradients.keys() - {without}, reverse=backwards)
        for place, weight in enumerate(self.weights):
            terms = [gradients[identity][place] for identity in order]
            weight.grad = _summed(terms) / self.job.ranks
        self.absolute = [
            _summed([gradients[identity][place].abs() for identity in order]) / self.job.ranks
            for place in range(len(self.weights))
        ]
        self.optimizer.step()
        self.step += 1

    def finish(self) -> "Training":
        while self.step < self.job.steps:
            self.advance()
        return self

    def push(self, seed: int) -> None:
        """Move every weight by PUSH, up or down."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.weights:
                signs = torch.rand(weight.shape, generator=generator) < 0.5
                weight += PUSH * (2.0 * signs.double() - 1.0)

    def values(self) -> dict[str, Tensor]:
        return {n: w.detach().clone() for n, w in zip(self.names, self.weights, strict=True)}

    def shard(self, rank: int) -> dict[str, Tensor]:
        """The part of the weights that `rank` holds."""
        at = rank % self.job.shards
        return {n: w.chunk(self.job.shards)[at] for n, w in self.values().items()}

    def _identities(self) -> list[Identity]:
        job = self.job
        return [(rank, micro) for rank in range(job.ranks) for micro in range(job.accumulation)]

    def _gradient(self, identity: Identity) -> Sequence[Tensor]:
        rank, micro = identity
        lane = self.lanes[rank]
        torch.set_rng_state(lane.state)
        x, y = next(lane.batches)
        slot = rank // self.job.shards
        loss = self.model(x, y, slot * self.job.accumulation + micro) / self.job.accumulation
        gradients = torch.autograd.grad(loss, self.weights)
        lane.state = torch.get_rng_state()
        return gradients


def _summed(terms: Sequence[Tensor]) -> Tensor:
    """From the left, one rounding for each term."""
    result = terms[0].clone()
    for term in terms[1:]:
        result += term
    return result


def _make_ddp(job: Job) -> tuple[nn.Module, Callable[[int], Batches]]:
    torch.manual_seed(1)
    text = torch.randn(4096, dtype=torch.float64)
    model = canary_ddp.Model(job.ranks * job.accumulation, job.width)

    def batches(_rank: int) -> Batches:
        while True:
            starts = torch.randint(len(text) - 20, (4,))
            x = torch.stack([text[i : i + 16] for i in starts])
            yield x, torch.stack([text[i + 16 : i + 20] for i in starts])

    return model, batches


def _make_hsdp(job: Job) -> tuple[nn.Module, Callable[[int], Batches]]:
    torch.manual_seed(1)
    model = canary_hsdp.Model(job.replicas * job.accumulation)

    def batches(rank: int) -> Batches:
        sampler = DistributedSampler(
            canary_hsdp.Points(), num_replicas=job.ranks, rank=rank, shuffle=True, seed=3,
            drop_last=True,
        )  # fmt: skip
        loader = DataLoader(canary_hsdp.Points(), batch_size=4, sampler=sampler, drop_last=True)
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            epoch += 1
            yield from loader

    return model, batches


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest |Δw|; infinite where something is NaN or absent."""
    if one.keys() != other.keys():
        return math.inf
    return max(float((one[n] - other[n]).abs().nan_to_num(math.inf).max()) for n in one)


@cache
def finished(job: Job) -> Training:
    """The failure-free run."""
    return Training(job).finish()


@cache
def bound(job: Job) -> float:
    """The most by which two runs of `job` with the same microbatches may differ (see above)."""
    training = Training(job)
    terms = job.ranks * job.accumulation
    reductions = job.accumulation if job.each else 1
    worst = [torch.zeros_like(weight) for weight in training.weights]  # of e, over the steps
    total = 0.0
    for step in range(job.steps):
        training.advance()
        state = training.optimizer.state
        update = 0.0
        for place, weight in enumerate(training.weights):
            error = 2 * gamma(terms + 2 * reductions) * training.absolute[place]
            worst[place] = torch.maximum(worst[place], error)
            second = state[weight]["exp_avg_sq"] / (1 - BETAS[1] ** (step + 1))
            update = max(update, float((worst[place] / (second.sqrt() + EPSILON)).max()))
        largest = max(float(weight.detach().abs().max()) for weight in training.weights)
        u_max = largest_update(job.steps)
        arithmetic = RATE * u_max * UPDATE_ROUNDINGS + WEIGHT_ROUNDINGS * (largest + RATE * u_max)
        added = RATE * (1 + u_max) * update + arithmetic * UNIT_ROUNDOFF
        total += added
    return total * ALLOWANCE * growth(job)


def growth(job: Job) -> float:
    """The factor by which a difference grows until the end, measured."""
    worst = 1.0
    for step, seed in ((0, 1), (0, 2), (min(3, job.steps - 1), 3)):
        training = Training(job)
        while training.step < step:
            training.advance()
        training.push(seed)
        difference = apart(training.finish().values(), finished(job).values())
        worst = max(worst, difference / PUSH)
    return worst
