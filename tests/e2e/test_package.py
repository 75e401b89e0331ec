"""Wheel and sdist build from the tree, and what the wheel installs is the whole program."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

ROOT = Path(__file__).resolve().parent.parent.parent
SKIPPED = shutil.ignore_patterns(".git", ".venv", "runs", "build", "dist", "*cache*", "*.egg-info")

CHECK = """
import importlib.metadata, importlib.resources, recoverrun.cli.main
from recoverrun.cli.commands.demo import demo_script
names = {path.name for path in importlib.resources.files("recoverrun.templates").iterdir()}
assert {"gpt_hsdp.py", "gpt_ddp.py"} <= names, names
assert demo_script().is_file(), demo_script()
(script,) = importlib.metadata.entry_points(group="console_scripts", name="recoverrun")
assert script.load() is recoverrun.cli.main.main
print(recoverrun.cli.main.__file__)
"""
OURS = {"recoverrun", "rendezvous", "ft_collectives"}


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from a copy, because building leaves files in the tree."""
    top = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, top / "tree", ignore=SKIPPED, symlinks=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(top / "dist")]
    done = subprocess.run(command, cwd=top / "tree", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return top / "dist"


@pytest.fixture(scope="session")
def programs(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone; all other packages come from where the tests run."""
    (wheel,) = dist.glob("*.whl")
    top = tmp_path_factory.mktemp("installed")
    venv.create(top, with_pip=True)
    programs = top / "bin"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([programs / "python", *install], check=True, capture_output=True, timeout=120)
    (site,) = top.glob("lib/*/site-packages")
    others = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "others.pth").write_text(f"{others}\n")
    return programs


def called(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that does not see this checkout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=150
    )


def test_the_wheel_holds_our_packages_and_no_others(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == OURS
    assert {"recoverrun/templates/gpt_hsdp.py", "recoverrun/templates/gpt_ddp.py"} <= set(names)


def test_the_wheel_installs_the_program_and_its_templates(programs: Path, tmp_path: Path) -> None:
    done = called(programs / "python", "-c", CHECK, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(programs.parent)


def test_a_template_of_the_wheel_is_protected(programs: Path, tmp_path: Path) -> None:
    (template,) = programs.parent.glob("lib/*/site-packages/recoverrun/templates/gpt_hsdp.py")
    inject = ["inject", "--kill=r1@step:2:reduce", "--nproc-per-node=2"]

    done = called(
        programs / "recoverrun", *inject, template, "--steps=4", "--shard-size=1", cwd=tmp_path
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kill, 1 loss survived" in done.stdout


def test_the_sdist_holds_all_that_is_needed_to_work_on_it(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"Makefile", "constraints.txt", "docs/recovery.md", "tests/test_tidy.py"} <= names
    assert {"templates/gpt_hsdp.py", "tests/e2e/test_package.py", "LICENSE"} <= names
