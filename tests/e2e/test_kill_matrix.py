"""Real processes, real SIGKILL: every phase of a step times every kind of loss.

`judge` says what each run must show. `make test` does a few of them, `make test-all` a sample,
`make matrix` all.
"""

import random
from pathlib import Path

import pytest

from tests.e2e import oracle
from tests.e2e.conftest import Reference
from tests.e2e.jobs import DDP4, HANG, LONG_DDP, LONG_HSDP, Job
from tests.e2e.judge import canary, ended_well, judge, ledger, nothing_left
from tests.e2e.kills import FEW, SAMPLE, Case, all_cells
from tests.e2e.runs import Run, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
matrix = pytest.mark.matrix

# ------------------------------------------------------------------------------- by schedule


def check(case: Case, folder: Path, reference: Reference) -> None:
    expected, bound = reference(case.job), oracle.bound(case.job)

    with running(case.job, folder / "run", inject=case.inject) as run:
        judge(run, case.dead, expected, bound)


@pytest.mark.parametrize(
    "case",
    [*(pytest.param(case, marks=pytest.mark.quick) for case in FEW), *SAMPLE],
    ids=lambda case: case.id,
)
def test_a_run_outlives_its_losses(case: Case, tmp_path: Path, reference: Reference) -> None:
    check(case, tmp_path, reference)


@matrix
@pytest.mark.parametrize("case", all_cells(), ids=lambda case: case.id)
def test_the_whole_matrix(case: Case, tmp_path: Path, reference: Reference) -> None:
    check(case, tmp_path, reference)


# ------------------------------------------------------------------------------- from outside


def test_a_kill_from_outside_at_any_moment(seed: int, tmp_path: Path) -> None:
    """The journal picks the moment; where in a step it strikes is left to chance."""
    rng = random.Random(seed)
    job = LONG_HSDP if seed % 3 == 0 else LONG_DDP
    finished = oracle.finished(job)
    ranks = rng.sample(range(job.ranks), 1 if job is LONG_HSDP else rng.randint(1, 3))

    with running(job, tmp_path / "run") as run:
        strike(run, ranks, rng)

        expected = {rank: finished.shard(rank) for rank in range(job.ranks)}
        judge(run, frozenset(ranks), expected, oracle.bound(job))


def strike(run: Run, ranks: list[int], rng: random.Random) -> None:
    """Kill one after another, each at a record: a step is committed, or a recovery gets on."""
    step = rng.randrange(1, 8)  # after the first one all ranks prove, and would start again
    run.await_record("step.commit", lambda record: record["step"] >= step)
    run.kill(ranks[0])
    for generation, rank in enumerate(ranks[1:], start=2):
        event = rng.choice(("replica.lost", "view.change", "decision.make", "recovery.done"))
        run.await_record(event, lambda record, least=generation: record["generation"] >= least)
        run.kill(rank)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        more = [pytest.param(seed, marks=matrix) for seed in range(3, 25)]
        metafunc.parametrize("seed", [2, *more])


@pytest.mark.parametrize("rank", [0, *(pytest.param(r, marks=matrix) for r in (1, 2, 3))])
@pytest.mark.parametrize(
    "job", [DDP4, pytest.param(LONG_HSDP, marks=matrix)], ids=lambda job: job.name
)
def test_a_kill_after_the_last_step_takes_nothing_back(job: Job, rank: int, tmp_path: Path) -> None:
    with running(job, tmp_path / "run") as run:
        run.await_record("step.commit", lambda record: record["step"] == job.transactions - 1)
        run.kill(rank)

        ended_well(run)
        nothing_left(run)
        ledger(run)
        exits = {record["rank"] for record in run.records("worker.exit") if record["signal"]}
        canary(run, frozenset(exits))


# ------------------------------------------------------------------------------- of the tests


@pytest.mark.quick
@pytest.mark.cold
def test_a_run_that_hangs_is_shown_and_ended(tmp_path: Path) -> None:
    with running(HANG, tmp_path / "run") as run:
        run.await_output(" hangs\n", times=HANG.ranks)
        run.expire()

        with pytest.raises(AssertionError, match="wait_for_what_never_comes") as failure:
            run.finish()

        assert not run.processes()
    assert str(failure.value).count("in wait_for_what_never_comes") == HANG.ranks
    assert "recoverrun/launcher/agent.py" in str(failure.value)
