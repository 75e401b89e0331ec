"""Shared fixtures: launchers that are ended, and runs without losses that are made once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import Job
from tests.e2e.judge import reference_of
from tests.e2e.launching import Launcher, launching
from tests.e2e.runs import running

Reference = Callable[[Job], dict[int, Any]]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with launching(tmp_path) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The final weights of the failure-free run of a job, by rank."""
    known: dict[Job, dict[int, Any]] = {}

    def weights(job: Job) -> dict[int, Any]:
        if job not in known:
            with running(job, tmp_path_factory.mktemp(job.name)) as run:
                known[job] = reference_of(run, job)
        return known[job]

    return weights
