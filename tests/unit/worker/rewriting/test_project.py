"""The files that belong to a script's project."""

import os
import sysconfig
from pathlib import Path

import pytest

from recoverrun.worker.rewriting import project as project_module
from recoverrun.worker.rewriting.project import Project, with_real_paths


def test_what_belongs_to_a_project(tmp_path: Path) -> None:
    stdlib = sysconfig.get_path("stdlib")
    hooks = os.path.dirname(project_module.__file__)
    project = Project.of([str(tmp_path), stdlib, "/", os.path.dirname(os.path.dirname(hooks))])

    assert project.contains(str(tmp_path / "a" / "b.py"))
    assert not project.contains(str(tmp_path / ".venv/lib/python3.11/site-packages/x.py"))
    assert not project.contains(os.path.join(os.path.realpath(stdlib), "ast.py"))
    assert not project.contains(os.path.join(hooks, "script.py"))


def test_a_package_that_is_installed_and_run_by_name_is_a_project() -> None:
    project = Project.of(["/opt/venv/lib/python3.11/site-packages/trainer"])

    assert project.contains("/opt/venv/lib/python3.11/site-packages/trainer/loop.py")
    assert not project.contains("/opt/venv/lib/python3.11/site-packages/torch/nn.py")
    assert Project.of(["/opt/venv/lib/python3.11/site-packages"]).roots == ()


def test_a_scan_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "a.py": "",
        "1/2/3/deep.py": "",
        "1/2/3/4/too_deep.py": "",
        ".hidden/x.py": "",
        "env/pyvenv.cfg": "",
        "env/x.py": "",
        "node_modules/x.py": "",
        "data.txt": "",
        "z_large.py": "#" * 100,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(project_module, "SCAN_FILE_BYTES", 99)
    project = Project.of([str(tmp_path)])

    assert [os.path.basename(path) for path, _ in project.sources()] == ["a.py", "deep.py"]

    monkeypatch.setattr(project_module, "SCAN_FILES", 1)
    assert [os.path.basename(path) for path, _ in project.sources()] == ["a.py"]

    monkeypatch.setattr(project_module, "SCAN_ENTRIES", 0)
    assert list(project.sources()) == []


def test_the_real_path_of_a_file_follows_links_of_folders_and_of_the_file_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "y.py").symlink_to(tmp_path / "a" / "x.py")
    monkeypatch.chdir(tmp_path)

    paths = ["a/x.py", "link/x.py", "link/y.py", "link/../a/x.py", "missing/z.py"]
    paths += [str(tmp_path / path) for path in paths]
    assert dict(with_real_paths(paths)) == {path: os.path.realpath(path) for path in paths}
