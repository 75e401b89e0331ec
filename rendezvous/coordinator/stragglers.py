"""The rank that slows the others down: told by how long each waits, not by how long it works.

In a synchronous step all ranks take equally long, as the reduction is in it. But who makes others
wait waits least. Each rank says how long it waited in reductions and votes (`Committed.phases`), so
no clocks are compared. Its score is the share of a step for which the others waited more than it.
Others are those with as many microbatches: who has taken over a lost one's is no straggler.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from rendezvous.protocol.messages import Committed
from rendezvous.protocol.records import Json, Record

WINDOW = 32
"""Steps that a score is the mean of."""

FROM, TIMES = 0.04, 3.0
"""A rank is named from this score on, if it is so many times that of the next one. Simulated with
64 ranks and 5 % of noise: one that is slower by 5 % has 0.046, the next one 0.016."""

STEADY = 0.75
"""In this part of the steps it has to be late."""

UNTIL = 0.02
"""Below this it is cleared."""

KINDS = {
    "throttled": "the CPU limit of its cgroup holds it back",
    "cpu": "it waits for a CPU while others have those of its node",
    "data": "fetching data",
    "alone": "work that it does alone",
    "checkpoint": "checkpoints",
}
"""What a rank may be longer at than others. Causes come first: all else takes longer then."""

WAITS = ("reduce", "vote")


@dataclass(frozen=True, slots=True)
class _Step:
    """The statements of all ranks on one step, in milliseconds."""

    lag: Mapping[int, float]  # the others' median wait, less its own
    ms: float
    parts: Mapping[str, Mapping[int, float]]


class Stragglers:
    """The stragglers of one job; told of each step by all of its ranks."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=WINDOW)
        self._ranks: frozenset[int] = frozenset()
        self._named: int | None = None

    def step(self, number: int, said: Mapping[int, Committed]) -> list[Record]:
        """Take what all ranks say of a step; return a line if a straggler comes or goes."""
        if frozenset(said) != self._ranks or any(one.redone for one in said.values()):
            self._ranks = frozenset(said)  # after a loss everybody has more or less to do
            self._steps.clear()
        named = self._named
        if named is not None and (named not in said or len(said) < 2):
            self._named = None  # A lost one is no straggler, and one that is alone slows nobody.
            reason = f"rank {named} slows nobody: the others are lost"
            return [_cleared(number, named, reason)] if named in said else []
        self._steps.append(_measured(said))
        if len(self._steps) < WINDOW or len(said) < 2:
            return []
        scores = {rank: self._score(rank) for rank in said}
        first, *rest = sorted(scores, key=lambda rank: -scores[rank])
        if self._named is not None and scores.get(self._named, 0.0) < UNTIL:
            gone, self._named = self._named, None
            return [_cleared(number, gone, f"rank {gone} is as fast as the others again")]
        clear = scores[first] >= FROM and scores[first] >= TIMES * max(0.0, scores[rest[0]])
        if first == self._named or not clear or not self._steady(first):
            return []
        self._named = first
        return [self._found(number, first, scores[first])]

    def _score(self, rank: int) -> float:
        shares = [step.lag[rank] / step.ms for step in self._steps if step.ms > 0]
        return sum(shares) / WINDOW

    def _steady(self, rank: int) -> bool:
        """True if it is late in most steps, and not only very late in a few; late in time as well
        as by shares of steps, of which a short one would outweigh a long one in which it waited.
        """
        lags = [step.lag[rank] for step in self._steps]
        least_ms = sum(lags) / len(lags) / 4
        return least_ms > 0 and sum(lag >= least_ms for lag in lags) >= STEADY * WINDOW

    def _found(self, number: int, rank: int, score: float) -> Record:
        lag_ms = sum(step.lag[rank] for step in self._steps) / WINDOW
        kind = next((k for k in KINDS if self._more(k, rank) >= lag_ms / 2), "compute")
        why = KINDS.get(kind, "its own computing")
        reason = f"rank {rank} slows each step by {lag_ms:.0f} ms ({score:.0%}): {why}"
        fields: dict[str, Json] = {
            "step": number, "rank": rank, "score": round(score, 4),
            "lag_ms": round(lag_ms, 3), "kind": kind,
        }  # fmt: skip
        return Record("straggler.find", reason, fields)

    def _more(self, kind: str, rank: int) -> float:
        """The milliseconds a step by which it is at this longer than others."""
        mean: dict[int, float] = {
            one: sum(step.parts[kind].get(one, 0.0) for step in self._steps) / WINDOW
            for one in self._ranks
        }
        return mean[rank] - median(ms for one, ms in mean.items() if one != rank)


def _measured(said: Mapping[int, Committed]) -> _Step:
    phases = {rank: dict(one.phases) for rank, one in said.items()}
    wait = {rank: sum(ms.get(name, 0.0) for name in WAITS) for rank, ms in phases.items()}
    order: dict[int, list[float]] = {}  # of ranks with as many microbatches
    for rank in sorted(wait, key=lambda rank: wait[rank]):
        order.setdefault(len(said[rank].done), []).append(wait[rank])
    lag = {rank: _median_without(order[len(said[rank].done)], ms) - ms for rank, ms in wait.items()}
    parts = {kind: {rank: ms.get(kind, 0.0) for rank, ms in phases.items()} for kind in KINDS}
    return _Step(lag, median(ms.get("step", 0.0) for ms in phases.values()), parts)


def _median_without(order: list[float], value: float) -> float:
    """The median of `order`, which is sorted, without one `value`. Among thousands it is nearly
    that of all, and there no list is made for each.
    """
    if len(order) > 64:
        return order[len(order) // 2]
    if len(order) < 2:
        return value
    others = order[:]
    others.remove(value)
    return median(others)


def _cleared(number: int, rank: int, reason: str) -> Record:
    fields: dict[str, Json] = {"step": number, "rank": rank}
    return Record("straggler.clear", reason, fields)
