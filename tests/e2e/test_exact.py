"""`--exact` with real processes and real SIGKILL: no bit of the result tells that anybody was lost.

A sample of `make exact`, with losses at once, in the make-up of another, and down to one replica.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.exactness import (
    DDP2,
    DDP4,
    HSDP2,
    HSDP4,
    OFTEN2,
    UNUSED4,
    VIEWS3,
    WHOLE4,
    ExactJob,
    State,
    bits,
    check,
    differing,
    reference,
    schedule,
    states,
)  # fmt: skip
from tests.e2e.runs import running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

SAMPLE = (
    pytest.param(DDP2, "r0@step:2:backward", marks=pytest.mark.quick),
    (WHOLE4, "r0@step:1:vote,r3@step:3:reduce,r1@step:3:redo"),
    (HSDP2, "r2@step:3:reduce:0"),
    (UNUSED4, "r0@step:3:forward"),  # nothing follows from what DDP counts by itself
)
MORE = (
    (OFTEN2, "r0@step:2:backward"),  # some seven million numbers are drawn in a step
    (HSDP4, "r1@step:1:backward,r2@step:1:redo"),
    (VIEWS3, "r1@step:1:reduce,r0@step:4:vote"),
    (UNUSED4, "r2@step:1:forward,r1@step:3:vote"),
    (HSDP4, "r3@step:2:reduce,r0@step:2:reduce,r1@step:5:forward"),
)


@pytest.fixture(scope="session")
def undisturbed() -> Callable[[ExactJob], dict[int, State]]:
    return cache(lambda job: reference(job, "--exact"))


@pytest.mark.parametrize(
    ("job", "inject"),
    [*SAMPLE, *(pytest.param(*one, marks=pytest.mark.matrix) for one in MORE)],
    ids=lambda value: getattr(value, "name", None),
)
def test_losses_change_no_bit(
    job: ExactJob, inject: str, tmp_path: Path,
    undisturbed: Callable[[ExactJob], dict[int, State]],
) -> None:  # fmt: skip
    lost = check(job, inject, undisturbed(job), tmp_path / "run")

    assert lost == inject.count("@")


@pytest.mark.matrix
def test_without_exact_the_same_losses_do_change_bits(tmp_path: Path) -> None:
    """Or the test above would pass for any order of addition."""
    job, inject = WHOLE4, "r0@step:1:vote,r3@step:3:reduce,r1@step:3:redo"
    expected = reference(job)
    with running(job, tmp_path / "run", inject=inject) as run:
        assert run.finish() == 0

        assert any(differing(state, expected[rank]) for rank, state in states(run).items())


@pytest.mark.parametrize(
    ("argument", "steps"),
    [pytest.param("--equal-count", 1, marks=pytest.mark.quick), ("--twice", 1)],
)
def test_what_cannot_be_exact_is_refused_by_the_first_backward_that_shows_it(
    argument: str, steps: int, tmp_path: Path
) -> None:
    """Within the backward of that step: its update is not made."""
    with running(DDP2, tmp_path / "run", options=("--exact",), arguments=(argument,)) as run:
        code = run.finish()

        assert code == 2, run.story()
        assert "recoverrun: --exact cannot be given" in run.output()
        assert "lost microbatches would be made up with other samples" in run.output()
        assert len(run.records("step.commit")) == steps, run.story()
        assert not states(run)


@pytest.mark.quick
def test_bits_tell_what_equality_does_not() -> None:
    import torch

    assert bits(torch.tensor([0.0])) != bits(torch.tensor([-0.0]))
    assert bits(torch.tensor([torch.nan])) == bits(torch.tensor([torch.nan]))


@pytest.mark.quick
def test_schedules_leave_one_replica_and_can_be_made_again() -> None:
    for job in (DDP4, HSDP2, HSDP4):
        for seed in range(200):
            kills = schedule(job, seed).split(",")
            struck = {job.replica_of(int(kill[1 : kill.index("@")])) for kill in kills}
            assert len(struck) == len(kills) < job.replicas
            assert schedule(job, seed) == ",".join(kills)
