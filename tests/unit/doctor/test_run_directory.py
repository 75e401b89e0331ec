"""A run directory is tried where it would be made, and nothing is left there."""

from pathlib import Path

from recoverrun.doctor.run_directory import nearest, tried


def test_a_run_directory_is_tried_where_it_would_be_made_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    trouble, free, fsync_ms = tried(tmp_path / "runs" / "new")

    assert (trouble, free > 0, fsync_ms > 0) == ("", True, True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert tried(tmp_path / "file" / "runs")[0] == "not a directory"


def test_the_nearest_directory_that_is_there_holds_what_is_tried(tmp_path: Path) -> None:
    assert nearest(tmp_path / "runs" / "a" / "b") == tmp_path
    assert nearest(tmp_path) == tmp_path
