"""A run is found by its directory, its name, and as the latest."""

import os
from pathlib import Path

import pytest

from recoverrun.reports.find_run import RunNotFound, find_run
from rendezvous.journal.writer import journal_path
from tests.unit import journals


def test_a_run_is_found_by_directory_name_and_latest(tmp_path: Path) -> None:
    old, new = tmp_path / "runs" / "a", tmp_path / "runs" / "b" / "20261121"
    for place in (old, new):
        place.mkdir(parents=True)
        journals.user_exception(place)
    os.utime(journal_path(old, "gpu-01"), (1, 1))

    assert find_run("latest", tmp_path) == new
    assert find_run("a", tmp_path) == old
    assert find_run("b", tmp_path) == new
    assert find_run(str(old), tmp_path) == old
    with pytest.raises(RunNotFound, match="c"):
        find_run("c", tmp_path)


def test_a_job_of_slurm_is_found_by_its_number(tmp_path: Path) -> None:
    for name in ("88-0", "88-1", "881-0"):
        place = tmp_path / "runs" / "train" / name
        place.mkdir(parents=True)
        journals.user_exception(place)
        os.utime(journal_path(place, "gpu-01"), (int(name[-1]) + 1, int(name[-1]) + 1))

    assert find_run("88", tmp_path).name == "88-1"
    assert find_run("881", tmp_path).name == "881-0"
    for name in ("8", "8*", "88-", "../88"):
        with pytest.raises(RunNotFound):
            find_run(name, tmp_path)


def test_a_path_is_named_once_where_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound) as refused:
        find_run(str(tmp_path / "away"), base=tmp_path)

    assert str(refused.value).count(f"{tmp_path / 'away'}") == 1
