"""Every way of training that is served: killed in one phase here, in three by `make compat`."""

from pathlib import Path

import pytest

from tests.compat.rows import (
    BY_HAND,
    DDP,
    FRAMEWORKS,
    FSDP1,
    FSDP2,
    MESHES,
    OWN_STREAMS,
    RECIPES,
    SHAPES,
    STREAMS,
    Row,
)
from tests.compat.trials import described, judge, run

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "row",
    [
        row
        for rows in (
            DDP,
            SHAPES,
            OWN_STREAMS,
            STREAMS,
            BY_HAND,
            RECIPES,
            FSDP2,
            MESHES,
            FSDP1,
            FRAMEWORKS,
        )
        for row in rows
        if row.kills or (row.refused and not row.seldom)
    ],
    ids=lambda row: row.name,
)
def test_a_way_of_training_outlives_a_loss(row: Row, tmp_path: Path) -> None:
    if row.needs:
        pytest.importorskip(row.needs, reason="`make compat` installs it")
    plain = run(row, tmp_path / "plain")
    assert plain.exit_code == 0, plain.tail
    if row.refused:
        outcome = judge(row, tmp_path / "plain", tmp_path / "plain", "", plain)
        assert not outcome.problems, described(outcome)
    for number, inject in enumerate(row.kills):
        folder = tmp_path / f"killed{number}"

        outcome = judge(row, tmp_path / "plain", folder, inject, run(row, folder, inject))

        assert not outcome.problems, described(outcome)
