"""A run is found by its directory, its name, and as the latest."""

import os
from pathlib import Path

import pytest

from recoverrun.reports.find_run import RunNotFound, find_run
from rendezvous.journal.run_number import number_run
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


def test_a_clock_that_was_set_back_hides_no_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    places = [runs / "train" / name for name in ("20271121-101010-9", "20261121-101010-8")]
    for place, year in zip(places, (27, 26), strict=True):
        place.mkdir(parents=True)
        journals.user_exception(place)
        number_run(place, runs)
        os.utime(journal_path(place, "gpu-01"), (year, year))

    assert find_run("latest", tmp_path) == find_run("train", tmp_path) == places[1]


def test_numbers_of_another_folder_tell_nothing(tmp_path: Path) -> None:
    own, copied = tmp_path / "runs" / "own", tmp_path / "runs" / "copied"
    for place, at in ((copied, 1), (own, 2)):
        place.mkdir(parents=True)
        journals.user_exception(place)
        os.utime(journal_path(place, "gpu-01"), (at, at))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for _ in range(3):
        number_run(copied, elsewhere)

    assert find_run("latest", tmp_path) == own  # by their times: none has a number here
    number_run(own, tmp_path / "runs")
    os.utime(journal_path(copied, "gpu-01"), (3, 3))
    assert find_run("latest", tmp_path) == own


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
