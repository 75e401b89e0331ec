"""The outcome of a simulated history of the view register."""

from collections import Counter
from dataclasses import dataclass

from tests.sim.views.book import Book
from tests.sim.views.plan import Plan
from tests.sim.violation import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    plan: Plan
    violation: Violation | None
    digest: str
    book: Book
    coverage: Counter[str]
    lines: list[str]
