"""The same kill with recovery and without: what the kill matrix asserts is recovery's doing."""

from pathlib import Path

import pytest

from tests.e2e import oracle
from tests.e2e.conftest import Reference
from tests.e2e.jobs import DDP3
from tests.e2e.judge import judge, nothing_left
from tests.e2e.runs import recoverrun, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

DIES = ("--dies", "1:3")  # the script kills rank 1 in step 3; --inject needs the hooks of recovery
DEAD = frozenset({1})


def test_with_recovery_the_kill_changes_nothing(tmp_path: Path, reference: Reference) -> None:
    with running(DDP3, tmp_path / "run", arguments=DIES) as run:
        judge(run, DEAD, reference(DDP3), oracle.bound(DDP3))


def test_without_recovery_the_same_kill_ends_the_run_and_fails_the_matrix(tmp_path: Path) -> None:
    finished = oracle.finished(DDP3)
    weights = {rank: finished.shard(rank) for rank in range(DDP3.ranks)}

    with running(DDP3, tmp_path / "run", options=("--no-protect",), arguments=DIES) as run:
        assert run.finish() == 128 + 9
        nothing_left(run)
        assert not run.finishers()

        with pytest.raises(AssertionError, match="exit code 137"):
            judge(run, DEAD, weights, oracle.bound(DDP3))

    assert "rank 1" in run.output()
    told = recoverrun("postmortem", str(run.journal), "--json").stdout
    assert '"outcome": "failed"' in told
    assert '"exit_code": 137' in told
