"""The canaries and the bound of the kill matrix: what they would notice, and what they allow."""

import functools

import pytest

from tests.e2e import oracle
from tests.e2e.conftest import Reference
from tests.e2e.jobs import DDP3, DDP4, HSDP, Job
from tests.e2e.oracle import Identity, Training, apart

JOBS = pytest.mark.parametrize("job", [HSDP, DDP3, DDP4], ids=lambda job: job.name)


def with_one_odd_step(job: Job, step: int, how: functools.partial[None]) -> float:
    """|Δw| at the end of a run of which one step went otherwise."""
    training = Training(job)
    while training.step < step:
        training.advance()
    how.func(training, *how.args, **how.keywords)
    return apart(training.finish().values(), oracle.finished(job).values())


@JOBS
def test_another_order_of_summation_stays_within_the_bound(job: Job) -> None:
    training = Training(job)
    while training.step < job.steps:
        training.advance(backwards=True)

    difference = apart(training.values(), oracle.finished(job).values())
    assert 0 < difference < oracle.bound(job)


@JOBS
@pytest.mark.parametrize("identity", [(0, 0), (2, 2)])
@pytest.mark.parametrize("step", [0, 3, 7])
def test_one_microbatch_that_is_missing_once_exceeds_the_bound(
    job: Job, identity: Identity, step: int
) -> None:
    dropped = functools.partial(Training.advance, without=identity)

    assert with_one_odd_step(job, step, dropped) > 1e6 * oracle.bound(job)


@JOBS
def test_the_bound_is_far_below_one_update(job: Job) -> None:
    print(f"{job.name}: |Δw| may be {oracle.bound(job):.1e}")

    assert oracle.bound(job) < 1e-7 * oracle.RATE


@pytest.mark.rest
@pytest.mark.e2e
@JOBS
def test_a_run_without_losses_arrives_where_plain_torch_does(
    job: Job, reference: Reference
) -> None:
    for rank, weights in reference(job).items():
        assert apart(weights, oracle.finished(job).shard(rank)) < oracle.bound(job)
