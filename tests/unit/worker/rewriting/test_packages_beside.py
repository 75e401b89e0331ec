"""Packages elsewhere that may train in the place of a project."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from recoverrun.worker.rewriting.packages_beside import Scan, scan
from recoverrun.worker.rewriting.project import Project

ENGINE = "raise ImportError('it is only read')\ndef fit(ds):\n    for d in ds: d.backward()\n"
SCRIPT = "import os, rr_engine.core as core\nfrom rr_other import x\nfrom . import y\n"


def _package(folder: Path, text: str, name: str = "rr_engine") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise ImportError('it is only read')\n")
    (folder / name / "core.py").write_text(text)
    return folder / name


@pytest.fixture
def scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Scanned":
    return Scanned(tmp_path, monkeypatch)


class Scanned:
    """A script, and a folder that Python imports from."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = folder / "project" / "train.py"
        self.script.parent.mkdir()
        self.script.write_text(SCRIPT)
        self.libraries = folder / "libraries"
        monkeypatch.syspath_prepend(str(self.libraries))

    def __call__(self, *known: str) -> Scan:
        importlib.invalidate_caches()
        return scan(Project.of([str(self.script.parent)], str(self.script)), known)


def test_a_package_that_nobody_installed_is_the_project_s(scanned: Scanned) -> None:
    package = _package(scanned.libraries, "import rr_further\n" + ENGINE)
    further = _package(scanned.libraries, "", "rr_further")

    found = scanned()

    assert found.project.contains(str(package / "core.py"))
    assert found.project.contains(str(further / "core.py"))
    assert not found.project.contains(str(scanned.libraries / "rr_unasked" / "core.py"))
    assert str(package / "core.py") in found.sources and not found.installed
    assert "rr_engine" not in sys.modules


def test_an_installed_one_is_known_by_its_backward(scanned: Scanned) -> None:
    package = _package(scanned.libraries, ENGINE)
    (package / "idle.py").write_text("def idle(): pass\n")
    (scanned.libraries / "rr_engine-1.0.dist-info").mkdir()

    found = scanned()

    core, idle = str(package / "core.py"), str(package / "idle.py")
    assert not found.project.contains(core)
    assert found.files(whole=False).keys() == {str(scanned.script), core}
    assert {core, idle} < found.files(whole=True).keys()
    assert found.trainers([core]).contains(idle) and not found.trainers([]).contains(idle)


@pytest.mark.parametrize(("text", "known"), [("def fit(): pass\n", ()), (ENGINE, ("rr_engine",))])
def test_one_without_a_backward_or_that_is_known_is_left_alone(
    text: str, known: tuple[str, ...], scanned: Scanned
) -> None:
    _package(scanned.libraries, text)
    (scanned.libraries / "rr_engine-1.0.dist-info").mkdir()

    found = scanned(*known)

    assert found.files(whole=True).keys() == {str(scanned.script)}


def test_a_module_by_itself(scanned: Scanned) -> None:
    scanned.libraries.mkdir()
    (scanned.libraries / "rr_engine.py").write_text(ENGINE)

    assert str(scanned.libraries / "rr_engine.py") in scanned().sources

    (scanned.libraries / "rr_other-1.0.dist-info").mkdir()
    importlib.import_module("recoverrun.worker.rewriting.project").is_installation.cache_clear()
    module = str(scanned.libraries / "rr_engine.py")

    assert scanned().trainers([module]).contains(module)


def test_our_own_packages_are_no_project_s(scanned: Scanned) -> None:
    scanned.script.write_text("import recoverrun\n")

    assert scanned().sources.keys() == {str(scanned.script)}


def test_what_a_finder_raises_is_left_to_the_import(
    scanned: Scanned, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raises:
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            raise RuntimeError("not in this process")

    finder: Any = Raises()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    _package(scanned.libraries, ENGINE)

    assert scanned().sources.keys() == {str(scanned.script)}
