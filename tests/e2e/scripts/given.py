"""Attributes hold values that never change, functions, objects of the script's and of libraries."""

import enum
import math
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Phase(enum.Enum):
    WARM = 0.5
    MAIN = 1.0


class Rates(NamedTuple):
    decay: float
    factors: tuple[float, ...] = (1.0,)


class Slow:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def of(self, decay: float) -> float:
        return self.scale * decay


class Quick(Slow):
    def __init__(self, scale: float, past: list[float]) -> None:
        super().__init__(scale)
        self.past = past

    def of(self, decay: float) -> float:
        self.past.append(decay)
        return self.scale * decay / len(self.past)


class Given:
    """Its attributes are given such values, functions and objects while it trains."""

    def __init__(self) -> None:
        self.phase, self.rates, self.activation = Phase.WARM, Rates(0.1), torch.tanh
        self.frozen, self.span, self.share = frozenset({1}), timedelta(seconds=1), Fraction(1, 2)
        self.turned, self.exact, self.since = 1j, Decimal("0.5"), datetime(2026, 1, 1)
        self.place, self.bounds, self.limit = Path("a"), (0.1, (1, 2)), range(3)
        self.pace: Slow = Slow(1.0)
        self.factor = self.warm
        self.shapes = [lambda x: x, lambda x: x * x]
        self.shape = self.shapes[0]
        self.stages = [Slow(1.0), Slow(2.0)]
        self.stage = self.stages[0]
        self.least: torch.nn.Module | None = None
        self.kept: dict[str, dict[str, list[float]]] = {}

    def warm(self) -> float:
        return 0.5

    def main(self) -> float:
        return self.bounds[0]

    def moves(self) -> None:
        global scale_of
        self.phase, self.rates, self.activation = Phase.MAIN, Rates(0.2, (0.5, 2.0)), F.relu
        self.frozen, self.span, self.share = frozenset({1, 2}), timedelta(days=1), Fraction(1, 3)
        self.turned, self.exact, self.since = 2j, Decimal("0.25"), datetime(2026, 1, 2)
        self.place, self.bounds, self.limit = Path("a/b"), (0.2, (1, 2, 3)), range(7)
        self.pace, self.factor, self.shape = Quick(1.0, [0.5]), self.main, self.shapes[1]
        self.stage = self.stages[1]
        self.least = torch.nn.Threshold(0.75, 0.5)
        self.kept["late"] = {"factors": []}
        scale_of = math.exp

    def decay(self) -> float:
        sizes = len(self.frozen) + len(self.limit) + len(self.bounds[1]) + len(str(self.place))
        numbers = float(self.share) + self.turned.imag + float(self.exact) + self.since.day
        factor = self.rates.decay * sum(self.rates.factors) * self.phase.value * self.factor()
        factor = factor if self.least is None else self.least(torch.tensor(factor)).item()
        for factors in self.kept.get("late", {}).values():
            factors.append(factor)
            factor = sum(factors) / len(factors)
        seconds = self.span.total_seconds() / 86400
        return scale_of(self.stage.of(self.pace.of(sizes * (numbers + seconds) * factor)) / 500)


scale_of = math.sin
