"""The kills of `make test`, of `make test-all` and of `make matrix`: who dies, and when.

A run may hold several kills where that covers more phases. `all_cells` is the whole matrix. The
few and the sample touch each phase, each kind of loss and rank 0 at least once; `make test` does
the few. Step 0 is torch's own: what becomes of a loss in it is told by `test_beginnings`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations

from tests.e2e.jobs import (
    DDP3,
    DDP3_EACH,
    DDP4,
    FSDP4,
    HSDP,
    HSDP3,
    HSDP_EACH,
    LONG_HSDP,
    SINGLE,
    WHOLE,
    WIDE,
    Job,
)

# Before, in the middle of and at the end of the buckets: "reduce" alone means the middle one.
REDUCE = ("reduce:0", "reduce", "reduce:99")
PHASES = ("forward", "backward", *REDUCE, "vote", "between")
COARSE = ("forward", "backward", "reduce", "vote", "between")
LAST = ("forward", "backward", "reduce", "vote")  # nothing comes between the last step and the end


@dataclass(frozen=True, slots=True)
class Case:
    """A run of `job` in which `kills` strike, in this order or at once."""

    job: Job
    kills: tuple[str, ...]

    @property
    def inject(self) -> str:
        return ",".join(self.kills)

    @property
    def dead(self) -> frozenset[int]:
        return frozenset(int(kill[1 : kill.index("@")]) for kill in self.kills)

    @property
    def id(self) -> str:
        return f"{self.job.name}-{self.inject.replace('@step', '')}"


def kill(rank: int, step: int, phase: str) -> str:
    return f"r{rank}@step:{step}:{phase}"


def case(job: Job, *kills: tuple[int, int, str]) -> Case:
    return Case(job, tuple(kill(*one) for one in kills))


FEW = (
    case(HSDP, (3, 4, "reduce")),
    case(DDP3, (0, 2, "backward"), (1, 2, "redo")),
    case(WHOLE, (1, 1, "reduce"), (0, 4, "vote"), (2, 5, "between")),
)
SAMPLE = (
    case(HSDP, (0, 5, "forward"), (1, 5, "forward")),  # both ranks of one replica
    case(DDP3, (1, 3, "reduce:0"), (2, 3, "reduce:0")),
    case(DDP4, (3, 3, "reduce"), (1, 3, "redo"), (2, 6, "backward")),
    case(DDP4, (3, 0, "between"), (0, 5, "backward"), (1, 5, "backward")),
    case(HSDP_EACH, (2, 4, "backward")),  # in the middle of a step
    case(HSDP3, (1, 3, "backward"), (2, 3, "redo")),  # its mate is left in the midst of it
    case(DDP3_EACH, (0, 3, "reduce"), (2, 8, "vote")),
)
MIXED = (
    case(FSDP4, (0, 2, "reduce"), (2, 2, "redo"), (1, 6, "vote")),
    case(WHOLE, (0, 3, "backward"), (2, 3, "redo"), (3, 6, "reduce")),
    case(DDP3, (2, 1, "vote"), (0, 7, "forward")),
    case(DDP3, (0, 1, "vote"), (2, 5, "reduce")),
    case(DDP4, (0, 1, "forward"), (1, 3, "vote"), (2, 6, "between")),
)
"""Phases that no rule below puts together."""


def all_cells() -> list[Case]:
    found = [*MIXED, *_hsdp(), *_ddp(DDP3), *_ddp(DDP4), *_more()]
    return list(dict.fromkeys(found))


def _hsdp() -> Iterator[Case]:
    """Two replicas: one loss a run."""
    for rank in range(HSDP.ranks):
        yield from (case(HSDP, (rank, 3, phase)) for phase in PHASES)
        yield from (case(HSDP, (rank, 1, phase)) for phase in COARSE)
        yield from (case(HSDP, (rank, HSDP.steps - 1, phase)) for phase in LAST)
    for first in (0, 2):
        for phase in COARSE:
            yield case(HSDP, (first, 4, phase), (first + 1, 4, phase))


def _ddp(job: Job) -> Iterator[Case]:
    ranks = range(job.ranks)
    yield from _chains(job)
    for rank in ranks:  # the first protected step, and another rank in the last one
        for place, phase in enumerate(COARSE):
            other = (rank + 1) % job.ranks
            last = (other, job.steps - 1, LAST[(place + rank) % len(LAST)])
            yield case(job, (rank, 1, phase), last)
    for pair in combinations(ranks, 2):  # two at once
        for step, phase in enumerate(PHASES):
            yield case(job, *((rank, 1 + step % (job.steps - 2), phase) for rank in pair))
    for first, second in permutations(ranks, 2):  # a second during the recovery of the first
        phase = PHASES[(3 * first + second) % len(PHASES)]
        if phase == "between":  # the recovery is then in the next step
            yield case(job, (first, 3, phase), (second, 4, "redo"))
        elif phase == "vote":  # if all others held every bucket, nothing is done again
            yield case(job, (first, 3, phase), (second, 4, "forward"))
        else:
            yield case(job, (first, 3, phase), (second, 3, "redo"))


def _chains(job: Job) -> Iterator[Case]:
    """One after another until one replica is left, beginning with each rank in each phase."""
    for rank in range(job.ranks):
        for place, phase in enumerate(PHASES):
            first = 1 + place % 2
            chain = [(rank, first, phase)]
            for nth in range(1, job.ranks - 1):
                other = (rank + nth * (1 + place % 2)) % job.ranks
                if other == rank or any(other == struck for struck, _, _ in chain):
                    other = next(
                        r for r in range(job.ranks) if all(r != struck for struck, _, _ in chain)
                    )
                chain.append((other, first + 2 * nth, PHASES[(place + 2 * nth) % len(PHASES)]))
            yield case(job, *chain)


def _more() -> Iterator[Case]:
    """All but one at once, a third during the recovery of the second, and other shapes."""
    for spared in range(DDP4.ranks):
        others = [rank for rank in range(DDP4.ranks) if rank != spared]
        for place, phase in enumerate(COARSE):
            yield case(DDP4, *((rank, 1 + place, phase) for rank in others))
        a, b, c = others
        yield case(DDP4, (a, 3, "backward"), (b, 3, "redo"), (c, 3, "redo"))
        yield case(FSDP4, (a, 2, "reduce"), (b, 2, "redo"), (c, 5, "vote"))
        yield case(FSDP4, (b, 1, "backward"), (c, 1, "backward"), (a, 7, "reduce"))
        yield case(WHOLE, (a, 2, "backward"), (c, 2, "redo"), (b, 4, "forward"))
        yield case(HSDP3, (a, 2, "forward"), (4 + b % 2, 2, "redo"))
        yield case(HSDP3, (4 + a % 2, 3, "reduce"), (b % 4, 3, "redo"))
        yield case(WHOLE, (c, 3, "reduce"), (b, 3, "reduce"), (a, 6, "vote"))
        yield case(SINGLE, (b, 1, "forward"), (a, 3, "reduce"), (c, 5, "vote"))
        yield case(SINGLE, (c, 1, "reduce"), (b, 4, "backward"), (a, 4, "redo"))
    for rank in range(WIDE.ranks):
        yield from (case(WIDE, (rank, 2, phase)) for phase in REDUCE)
    for job in (HSDP_EACH, DDP3_EACH):  # every microbatch of a step in turn
        for place, phase in enumerate(PHASES):
            yield case(job, (place % job.ranks, 3 + place % (job.transactions - 4), phase))
    for step, phase in enumerate(PHASES, start=10):  # a new pass over the data begins in step 13
        yield case(LONG_HSDP, (step % HSDP.ranks, step, phase))
