"""py-spy reads stacks where it is installed: here a program of that name, which really runs."""

import os
from pathlib import Path

import pytest

from recoverrun.launcher.node import py_spy

TELLS = """#!/bin/sh
echo "asked: $*"
"""
FAILS = """#!/bin/sh
echo half of it
exit 1
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program, first on PATH."""
    program = tmp_path / "bin/py-spy"
    program.parent.mkdir()
    program.write_text(TELLS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def test_it_is_found_on_the_path_or_not_at_all(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert py_spy.find() == str(installed)
    monkeypatch.setenv("PATH", "")
    assert not py_spy.find()


def test_it_is_asked_without_stopping_the_process(installed: Path, tmp_path: Path) -> None:
    py_spy.leave(str(installed), 77, str(tmp_path / "spied"))

    said = (tmp_path / "spied").read_text()
    assert said == "py-spy, pid 77\nasked: dump --nonblocking --pid 77\n"


def test_what_it_cannot_read_is_not_kept(installed: Path, tmp_path: Path) -> None:
    installed.write_text(FAILS)

    py_spy.leave(str(installed), 77, str(tmp_path / "spied"))
    py_spy.leave(str(tmp_path / "none"), 77, str(tmp_path / "spied"))

    assert not (tmp_path / "spied").exists()


def test_it_is_given_a_second(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(py_spy, "WITHIN_S", 0.1)

    py_spy.leave(str(installed), 77, str(tmp_path / "spied"))

    assert not (tmp_path / "spied").exists()
