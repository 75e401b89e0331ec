"""The time of steps beside computing, summed over many steps: one journal line for 256 of them.

Told from the rank that others wait for, which waits least: its time for data, for checkpoints and
for what it does alone is everybody's. What others wait longer than it, and none of these explains,
is imbalance. Only steps count in which nobody redoes anything, and ranks with as much to do as the
one with most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from rendezvous.protocol.messages import Committed
from rendezvous.protocol.records import Json, Record

EVERY = 256
"""Steps in one line."""

EARLY = 9
"""Steps that warm up: what they spend is told by how long they are."""

LEAST_MS = 1.0
"""Less of each step together is not told."""

WAITS = ("reduce", "vote")

BESIDES = ("data", "alone", "checkpoint")
"""What explains that others wait for a rank."""


@dataclass(slots=True)
class StepSpending:
    """The spending of one job; told of each step by all of its ranks."""

    _seen: int = 0
    _steps: int = 0
    _first: int = -1
    _last: int = -1
    _data: float = 0.0
    _alone: float = 0.0
    _checkpoint: float = 0.0
    _imbalance: float = 0.0

    def step(self, number: int, said: Mapping[int, Committed]) -> list[Record]:
        """Take what all ranks say of a step; a line if it is time for one."""
        most = max((len(one.done) for one in said.values()), default=0)
        phases = {rank: dict(one.phases) for rank, one in said.items() if len(one.done) == most}
        if self._seen >= EARLY and not any(one.redone for one in said.values()):
            self._add({rank: ms for rank, ms in phases.items() if ms.get("step", 0.0) > 0})
        self._first = number if self._first < 0 else self._first
        self._last = number
        self._seen += 1
        self._steps += 1
        return self.close() if self._steps >= EVERY else []

    def close(self) -> list[Record]:
        """The line of the steps since the last one."""
        spent = self._data, self._alone, self._checkpoint, self._imbalance
        data, alone, checkpoint, imbalance = (round(ms, 3) for ms in spent)
        fields: dict[str, Json] = {
            "step": self._last, "steps": self._steps,
            "data_ms": data, "alone_ms": alone, "imbalance_ms": imbalance,
            "checkpoint_ms": checkpoint,
        }  # fmt: skip
        reason = f"steps {self._first} to {self._last}: what they spent beside computing"
        self._steps, self._first = 0, -1
        self._data = self._alone = self._checkpoint = self._imbalance = 0.0
        return [Record("time.spend", reason, fields)] if sum(spent) >= LEAST_MS else []

    def _add(self, phases: Mapping[int, Mapping[str, float]]) -> None:
        if not phases:
            return
        waits = {rank: sum(ms.get(name, 0.0) for name in WAITS) for rank, ms in phases.items()}
        last = min(waits, key=lambda rank: (waits[rank], rank))
        own = phases[last]
        self._data += own.get("data", 0.0)
        self._alone += own.get("alone", 0.0)
        self._checkpoint += own.get("checkpoint", 0.0)
        usual = median_low(map(_besides, phases.values()))
        late = median_low(waits.values()) - waits[last]
        self._imbalance += max(0.0, late - max(0.0, _besides(own) - usual))


def _besides(ms: Mapping[str, float]) -> float:
    return sum(ms.get(name, 0.0) for name in BESIDES)
