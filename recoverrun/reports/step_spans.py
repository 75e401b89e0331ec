"""Lengths of many steps in little room: how many there are of each length, within 0.2 %.

A run of weeks has millions of steps. Each class keeps the exact sum of its steps, so that what is
told of all steps together adds up to the microsecond, in whatever pieces they have come.
"""

import math
from dataclasses import dataclass, field

FINENESS = 500
"""Classes for each factor of e."""

LONG = 2
"""A step is long if it took more than so many times the usual one."""


@dataclass(slots=True)
class StepSpans:
    """The lengths of steps that do the same work. Times are microseconds."""

    steps: int = 0
    _classes: dict[int, list[int]] = field(default_factory=dict)  # -> [steps, their sum]

    def add(self, span_us: int) -> None:
        """Take in one step."""
        self.steps += 1
        known = self._classes.setdefault(_class(span_us), [0, 0])
        known[0] += 1
        known[1] += span_us

    def usual_us(self) -> int:
        """The median: the mean of the class in which the middle step is. 0 without a step."""
        middle = self.steps // 2
        for number in sorted(self._classes):
            count, total = self._classes[number]
            if middle < count:
                return total // count
            middle -= count
        return 0

    def split(self, usual_us: int) -> tuple[int, int]:
        """(time at the usual speed, what long steps took beyond it); together all."""
        whole = sum(total for _, total in self._classes.values())
        beyond = sum(
            total - count * usual_us
            for count, total in self._classes.values()
            if total > LONG * usual_us * count
        )
        return whole - beyond, beyond

    def copy(self) -> "StepSpans":
        return StepSpans(self.steps, {number: [*known] for number, known in self._classes.items()})


def beyond_usual(span_us: int, usual_us: int) -> int:
    """The time of one step beyond the usual one, if it is long."""
    return span_us - usual_us if span_us > LONG * usual_us else 0


def _class(span_us: int) -> int:
    return round(FINENESS * math.log(span_us)) if span_us > 0 else -1
