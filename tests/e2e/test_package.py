"""Wheel and sdist build from the tree, and what the wheel installs is the whole program."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SKIPPED = shutil.ignore_patterns(".git", ".venv", "runs", "build", "dist", "*cache*", "*.egg-info")

CHECK = """
import importlib.metadata, importlib.resources, recoverrun.cli.main
names = {path.name for path in importlib.resources.files("templates").iterdir()}
assert {"gpt_hsdp.py", "gpt_ddp.py"} <= names, names
(script,) = importlib.metadata.entry_points(group="console_scripts", name="recoverrun")
assert script.load() is recoverrun.cli.main.main
print(recoverrun.cli.main.__file__)
"""


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from a copy, because building leaves files in the tree."""
    top = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, top / "tree", ignore=SKIPPED)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(top / "dist")]
    done = subprocess.run(command, cwd=top / "tree", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return top / "dist"


@pytest.mark.rest
@pytest.mark.e2e
def test_the_wheel_installs_the_program_and_its_templates(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    # Our own packages come from the wheel, all others from where the tests run.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    (pth,) = (tmp_path / "venv").glob("lib/*/site-packages")
    code = f"import sys; sys.path.append({site!r})\n{CHECK}"

    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(pth)


@pytest.mark.rest
@pytest.mark.e2e
def test_the_sdist_holds_all_that_is_needed_to_work_on_it(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"Makefile", "constraints.txt", "docs/recovery.md", "tests/test_tidy.py"} <= names
    assert {"templates/gpt_hsdp.py", "tests/e2e/test_package.py", "LICENSE"} <= names
