"""A sample of the kill matrix of every strategy; `python -m tests.chaos --strategies` does all."""

from pathlib import Path

import pytest

from tests.chaos.cells import reference, strike
from tests.chaos.strategies import PHASES, SAMPLE, STRATEGIES, Cell, cells

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

QUICK = ("fsdp1-hybrid 2x2",)
SELDOM = ("ddp-static-graph", "fsdp2-keep 4x1")
"""Only `make matrix` tries them; others here are much like them."""


def _marks(cell: Cell) -> list[pytest.MarkDecorator]:
    if cell.strategy.name in QUICK:
        return [pytest.mark.quick]
    return [pytest.mark.matrix] if cell.strategy.name in SELDOM else []


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, id=cell.id, marks=_marks(cell)) for cell in SAMPLE],
)
def test_a_strategy_outlives_losses(cell: Cell, tmp_path: Path) -> None:
    plain = reference(cell.strategy, tmp_path / "plain")

    result = strike(cell, plain, tmp_path / "struck")

    assert not result.problems, "\n".join(result.problems)


@pytest.mark.quick
def test_the_few_are_of_the_sample() -> None:
    assert {cell.strategy.name for cell in SAMPLE} >= {*QUICK, *SELDOM}


@pytest.mark.quick
def test_every_strategy_is_struck_in_every_phase_that_it_has() -> None:
    for strategy in STRATEGIES:
        struck = {phase for cell in cells(strategy) for _, _, phase in cell.kills}
        lacking = set(PHASES) - struck

        one = {"reduce:0", "reduce:99"} if strategy.whole else set()
        few = {"redo"} if strategy.replicas == 2 else set()  # a second loss leaves nobody
        assert lacking <= one | few, strategy.name
