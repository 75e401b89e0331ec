"""Removal takes a run's own files, and never those of a run that lives."""

import os
from pathlib import Path

import pytest

from recoverrun.companion.companion_loop import LOG
from recoverrun.launcher.output.run_folder import RunFolder
from recoverrun.launcher.output.run_removal import hold, is_held, remove_run


def _run(place: Path) -> Path:
    place.mkdir(parents=True)
    for name in ("events.n1.jsonl", "events.n2.jsonl", "error.r0.0.json"):
        (place / name).write_text("{}")
    (place / "logs/none_x/attempt_0/0").mkdir(parents=True)
    (place / "logs/none_x/attempt_0/0/stdout.log").write_text("words")
    return place


def test_a_run_goes_with_its_journals_and_logs(tmp_path: Path) -> None:
    path = _run(tmp_path / "train/1")

    assert remove_run(path)

    assert not path.exists()


def test_stacks_and_the_log_of_alerts_go_with_it(tmp_path: Path) -> None:
    path = _run(tmp_path / "train/1")
    (path / "hangs/1").mkdir(parents=True)
    (path / "hangs/1/rank0.stack").write_text("stacks")
    (path / LOG).write_text("a command failed")

    assert remove_run(path)

    assert not path.exists()


def test_what_somebody_else_has_put_there_stays(tmp_path: Path) -> None:
    path = _run(tmp_path / "train/1")
    (path / "model.pt").write_text("weights")
    (path / "events.link.jsonl").symlink_to(path / "model.pt")

    assert remove_run(path)

    assert [left.name for left in path.iterdir()] == ["model.pt"]


def test_a_run_that_lives_is_not_removed(tmp_path: Path) -> None:
    path = _run(tmp_path / "train/1")
    lock = hold(path)

    assert is_held(path)
    assert not remove_run(path)
    assert len(list(path.iterdir())) == 4

    os.close(lock)
    assert not is_held(path)
    assert remove_run(path)


def test_a_launcher_holds_its_run_directory_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    for folder in (RunFolder(None, "train", "1"), RunFolder(tmp_path / "mine", "train", "1")):
        assert is_held(folder.path)


def test_latest_leads_to_a_run_that_is_there(tmp_path: Path) -> None:
    paths = [_run(tmp_path / f"train/{number}") for number in range(3)]
    latest = tmp_path / "train/latest"
    latest.symlink_to("2")

    remove_run(paths[0])
    assert latest.resolve() == paths[2]
    remove_run(paths[2])
    assert latest.resolve() == paths[1]
    remove_run(paths[1])
    assert not (tmp_path / "train").exists()


def test_a_link_is_no_run(tmp_path: Path) -> None:
    path = _run(tmp_path / "train/1")
    (tmp_path / "train/other").symlink_to("1")

    assert not remove_run(tmp_path / "train/other")
    assert path.exists()
