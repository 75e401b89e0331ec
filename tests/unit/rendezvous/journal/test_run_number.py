"""Runs below one folder are counted; what cannot be read as a number is none."""

from pathlib import Path

import pytest

from rendezvous.journal.run_number import COUNTER, NUMBER, number_run, run_number


def _run(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def test_each_run_has_the_next_number(tmp_path: Path) -> None:
    runs = [_run(tmp_path, name) for name in "cab"]
    for run in runs:
        number_run(run, tmp_path)

    assert [run_number(run, tmp_path) for run in runs] == [1, 2, 3]
    number_run(runs[0], tmp_path)  # begun again in the same directory
    assert run_number(runs[0], tmp_path) == 4
    assert sorted(path.name for path in runs[0].iterdir()) == [NUMBER]


@pytest.mark.parametrize(
    "text", [b"", b"1", b"a", b"a -1", b"a 1\n2", b"\xff 1", b"a " + b"9" * 99]
)
def test_what_is_no_number_counts_as_none(tmp_path: Path, text: bytes) -> None:
    run = _run(tmp_path, "run")
    number_run(run, tmp_path)
    mark = (tmp_path / COUNTER).read_bytes().split()[0]
    (run / NUMBER).write_bytes(text)

    assert run_number(run, tmp_path) == 0
    assert mark != b"a"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    run, secret = _run(tmp_path, "run"), tmp_path / "secret"
    secret.write_text("kept")
    (tmp_path / COUNTER).symlink_to(secret)
    (run / NUMBER).symlink_to(secret)

    number_run(run, tmp_path)

    assert secret.read_text() == "kept" and run_number(run, tmp_path) == 1
