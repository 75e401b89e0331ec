"""Runs one script under either launcher, and leaves no process behind."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
LAUNCHERS = ("recoverrun", "torchrun")
END_WITHIN_S = 10.0

HEADS: Mapping[str, tuple[str, ...]] = {"recoverrun": (), "torchrun": ("--standalone",)}
"""Options of every run. Alone, torchrun takes any free port, as recoverrun takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run that is over; `code` is None where it was ended by us."""

    code: int | None
    output: str
    errors: str
    began_ns: int  # CLOCK_MONOTONIC
    wall_s: float


def program(launcher: str) -> list[str]:
    """The command that a user types, of the environment that runs us."""
    beside = Path(sys.executable).with_name(launcher)
    if beside.exists():
        return [str(beside)]
    modules = {"recoverrun": "recoverrun", "torchrun": "torch.distributed.run"}
    return [sys.executable, "-m", modules[launcher]]


def environment(**more: str) -> dict[str, str]:
    """Ours, with this source tree first, one thread per rank, and bytecode as pip leaves it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def command(launcher: str, nproc: int, options: Sequence[str], script: Path) -> list[str]:
    count = f"--nproc-per-node={nproc}"
    return [*program(launcher), *HEADS[launcher], count, *options, str(script)]


def run(
    launcher: str,
    nproc: int,
    script: str,
    arguments: Sequence[str],
    *,
    directory: Path,
    options: Sequence[str] = (),
    timeout_s: float = 300.0,
    **more: str,
) -> Ran:
    """Run scripts/SCRIPT to its end in the empty `directory`; `more` is for the environment."""
    whole = [*command(launcher, nproc, options, SCRIPTS / script), *arguments]
    out, err = directory / "output", directory / "errors"
    with open(out, "wb") as output, open(err, "wb") as errors:
        began_ns = time.monotonic_ns()
        process = subprocess.Popen(
            whole, cwd=directory, env=environment(**more), stdout=output, stderr=errors
        )
        code: int | None = None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass  # `code` says so
        finally:
            end(process)
    return Ran(
        code=code,
        output=out.read_text(errors="replace"),
        errors=err.read_text(errors="replace"),
        began_ns=began_ns,
        wall_s=(time.monotonic_ns() - began_ns) / 1e9,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """See a launcher and all that it started gone, whatever state they are in."""
    if process.poll() is not None:
        return
    workers = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_WITHIN_S)
    for worker in workers:
        if worker.is_running():  # the same process, not another one with its pid
            worker.kill()


def must(ran: Ran) -> Ran:
    """A run that has to succeed. Raises SystemExit with the end of what it said."""
    if ran.code != 0:
        raise SystemExit(f"exit code {ran.code}\n{ran.output[-2000:]}\n{ran.errors[-4000:]}")
    return ran
