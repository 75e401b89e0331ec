"""Ways of training that are served: one of each kind here, all by `make matrix`.

`make test` does one that goes back, and strikes one in `test_strategies`. `make compat` strikes
every one in three phases.
"""

from pathlib import Path

import pytest

from tests.compat import gone_back
from tests.compat.row import Row
from tests.compat.rows import ROWS
from tests.compat.trials import described, judge, run

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

QUICK = frozenset({"shared-update"})
SAMPLE = QUICK | {"ddp-compiled", "mesh-pp", "pictures-workers", "recipe-hsdp", "step-tokens"}


def _marks(row: Row) -> list[pytest.MarkDecorator]:
    if row.name in QUICK:
        return [pytest.mark.quick]
    return [] if row.name in SAMPLE else [pytest.mark.matrix]


@pytest.mark.quick
def test_the_sample_is_of_rows_that_are() -> None:
    assert {row.name for row in ROWS if row.kills or row.goes_back} >= SAMPLE


def _rows(*, goes_back: bool) -> list[object]:
    rows = [row for row in ROWS if row.goes_back is goes_back and (row.kills or goes_back)]
    return [pytest.param(row, id=row.name, marks=_marks(row)) for row in rows]


@pytest.mark.parametrize("row", _rows(goes_back=False))
def test_a_way_of_training_outlives_a_loss(row: Row, tmp_path: Path) -> None:
    if row.needs:
        pytest.importorskip(row.needs, reason="`make compat` installs it")
    plain = run(row, tmp_path / "plain")
    assert plain.exit_code == 0, plain.tail
    for number, inject in enumerate(row.kills):
        folder = tmp_path / f"killed{number}"

        outcome = judge(row, tmp_path / "plain", folder, inject, run(row, folder, inject))

        assert not outcome.problems, described(outcome)


@pytest.mark.parametrize("row", _rows(goes_back=True))
def test_where_no_step_outlives_a_loss_all_ranks_go_back(row: Row, tmp_path: Path) -> None:
    if row.needs:
        pytest.importorskip(row.needs, reason="`make compat` installs it")

    outcome = next(gone_back.tried(row, tmp_path))

    assert not outcome.problems, described(outcome)
