"""Runs of a script under either launcher, and what it said of its weights and its books."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rendezvous.journal.step_lines import full_lines
from tests.bench import jobs
from tests.e2e.plain import unspoilt

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/e2e/scripts"
BOUND_S = 90
PLAIN_BOUND_S = 30


@dataclass(frozen=True)
class Outcome:
    code: int | None  # None: it did not end by itself
    text: str
    promises: tuple[str, ...]
    notices: tuple[str, ...]

    def weights(self) -> dict[int, float]:
        found = re.findall(r"rank (\d+) weights ([0-9.]+)", self.text)
        return {int(rank): float(total) for rank, total in found}

    def books(self) -> dict[int, str]:
        found = re.findall(r"rank (\d+) books (.*)", self.text)
        return {int(rank): books for rank, books in found}


def run(
    script: Path, folder: Path, *arguments: str, ranks: int = 3, inject: str = "",
    options: Sequence[str] = (), **environment: str,
) -> Outcome:  # fmt: skip
    folder.mkdir(exist_ok=True)
    journal = folder / (inject.replace(":", "-").replace("@", "-") or "whole")
    command = [
        sys.executable,
        "-m",
        "recoverrun",
        f"--nproc-per-node={ranks}",
        f"--run-dir={journal}",
        # What survivors do alone is looked at: nobody comes back.
        *([f"--inject={inject}", "--no-return"] if inject else []),
        *options,
        str(script),
        *arguments,
    ]
    env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    env |= environment
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BOUND_S,
        text=True,
        check=False,
    )
    records = []
    for path in journal.glob("events.*.jsonl"):
        records += full_lines(path.read_bytes().splitlines())
    return Outcome(
        code=done.returncode,
        text=done.stdout,
        promises=tuple(r["promise"] for r in records if r["ev"] == "promise.state"),
        notices=tuple(r["reason"] for r in records if r["ev"] == "notice.give"),
    )


def under_torchrun(
    script: Path, folder: Path, *arguments: str, ranks: int = 3, **environment: str
) -> Outcome:
    def attempt(number: int) -> Outcome:
        place = folder / f"plain{number}"
        place.mkdir(parents=True)
        path, bound = str(script), PLAIN_BOUND_S
        ran = jobs.run(
            "torchrun", ranks, path, arguments, directory=place, timeout_s=bound, **environment
        )
        return Outcome(code=ran.code, text=ran.output + ran.errors, promises=(), notices=())

    return unspoilt(attempt, lambda ran: ran.text, lambda ran: ran.code is None)
