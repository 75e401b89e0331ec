"""Nothing that a forked child writes arrives, however it opens its files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recoverrun.worker.verification.forked_child import run

WITHIN_S = 20.0


def _appended(path: Path) -> None:
    with open(path, "a") as file:
        file.write("more")


def _written_by_number(path: Path) -> None:
    number = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(number, b"more")
    os.close(number)


WAYS: dict[str, Callable[[Path], Any]] = {
    "append": _appended,
    "write": lambda path: path.write_text("other"),
    "number": _written_by_number,
    "remove": lambda path: os.remove(path),
    "rename": lambda path: path.rename(path.with_suffix(".old")),
    "move": lambda path: shutil.move(path, path.with_suffix(".old")),
    "make": lambda path: (path.parent / "folder" / "inner").mkdir(parents=True),
    "create": lambda path: path.with_suffix(".new").open("x").close(),
    "save": lambda path: torch.save({"a": 1}, path),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_is_as_it_was(way: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first")

    said = run(lambda: {"done": WAYS[way](path) is None}, WITHIN_S)

    assert "failed" not in said

    assert [one.name for one in tmp_path.iterdir()] == ["log"]
    assert path.read_text() == "first"


def test_what_was_kept_under_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first")
    remove = os.remove

    said = run(lambda: {"done": remove(path)}, WITHIN_S)

    assert "may not change files" in said["failed"]
    assert path.read_text() == "first"


def test_what_is_there_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first")

    assert run(lambda: {"read": path.read_text()}, WITHIN_S) == {"read": "first"}
