"""A file that the script reads after it has written it is told, once; others are not."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from recoverrun.worker.snapshots.files_read_back import READ_BACK, FilesReadBack


def counted(path: Path) -> None:
    """The next number, by way of the standard library."""
    path.write_text(str(int(path.read_text()) + 1 if path.exists() else 0))


def replaced_in_place(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"1")
    os.close(fd)


def saved_as_json(path: Path) -> None:
    with path.open("w") as file:
        json.dump({"step": 1}, file)
    json.loads(path.read_text())


def saved_by_numpy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(1))
    np.load(path)


def logged(path: Path) -> None:
    handler = logging.FileHandler(path)
    handler.emit(logging.makeLogRecord({"msg": "step"}))
    handler.close()


def overwritten(path: Path) -> None:
    path.write_text("newest")


def read_alone(path: Path) -> None:
    Path(__file__).read_text()


def nowhere(path: Path) -> None:
    os.close(os.open(os.devnull, os.O_RDWR))


def found(step: Callable[[Path], None], path: Path, own: frozenset[str]) -> list[str]:
    files = FilesReadBack(lambda: own)
    files.watch()
    said = []
    for _ in range(3):
        step(path)
        said.append(files.news())
    return [one for one in said if one]


@pytest.mark.parametrize("step", [counted, replaced_in_place, saved_as_json, saved_by_numpy])
def test_one_that_is_read_again_is_told_once(step: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "count"

    assert found(step, path, frozenset({__name__})) == [READ_BACK.format(path)]


@pytest.mark.parametrize("step", [logged, overwritten, read_alone, nowhere])
def test_what_is_written_alone_or_read_alone_is_not(
    step: Callable[[Path], None], tmp_path: Path
) -> None:
    assert not found(step, tmp_path / "log", frozenset({__name__}))


def test_a_cache_of_a_library_is_not(tmp_path: Path) -> None:
    def caches(path: Path) -> None:
        torch.save({"step": 1}, path, _use_new_zipfile_serialization=False)
        torch.load(path)

    assert not found(caches, tmp_path / "cache", frozenset({__name__}))
    assert not found(counted, tmp_path / "count", frozenset({"another"}))
