"""The bench of recoveries finds what it measures: a bench that finds nothing fails here."""

import pytest

from tests.bench.recovery import Job, Results, by_recoverrun


@pytest.mark.timeout(180)
def test_each_loss_of_the_bench_is_measured() -> None:
    results = Results()

    by_recoverrun(Job("ddp", 2), 0, results)

    assert not results.failed
    [sample] = results.ours["ddp 2", 2, "reduce"]
    assert sample.total > sample.parts["redo"] > 0
