"""Whole runs on one GPU, by the launcher: two ranks over gloo with a loss, and one rank over NCCL.

NCCL takes no two ranks of one device, so the first run is `RECOVERRUN_CUDA=host`.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rendezvous.journal.step_lines import full_lines

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests/gpu/scripts/train.py"
DEVICE = os.environ.get("RECOVERRUN_TEST_DEVICE", "cuda:0")
"""`cpu` tries the test itself where there is no GPU, with --noconftest."""


def trained(out: Path, way: str, *options: str, ranks: int = 2, backend: str = "gloo") -> Any:
    """Run to the end; the journal's records. The weights are in `out`."""
    out.mkdir()
    ended = subprocess.run(
        [
            sys.executable, "-m", "recoverrun", f"--nproc-per-node={ranks}", *options,
            f"--run-dir={out}/journal", str(SCRIPT), f"--out={out}", f"--device={DEVICE}",
            f"--backend={backend}",
        ],
        env={**os.environ, "RECOVERRUN_CUDA": way, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=170, cwd=out,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    files = [path.read_bytes().splitlines() for path in out.glob("journal/events.*.jsonl")]
    return [line for file in files for line in full_lines(file)]


def promises(records: Any) -> list[tuple[str, str]]:
    return [(r["promise"], r["reason"]) for r in records if r["ev"] == "promise.state"]


@pytest.mark.parametrize("inject", ["r1@step:3:reduce", "r0@step:2:forward", "r1@step:4:vote"])
def test_a_loss_on_the_gpu_changes_the_weights_by_rounding_only(
    inject: str, tmp_path: Path
) -> None:
    whole = trained(tmp_path / "whole", "host")
    dead = int(inject[1])

    broken = trained(tmp_path / "broken", "host", f"--inject={inject}")

    assert {promise for promise, _ in promises(whole)} == {"exact-samples"}, promises(whole)
    assert [r["root_rank"] for r in broken if r["ev"] == "replica.lost"] == [dead]
    expected = torch.load(tmp_path / "whole/weights0.pt", weights_only=True)
    found = torch.load(tmp_path / f"broken/weights{1 - dead}.pt", weights_only=True)
    assert not (tmp_path / f"broken/weights{dead}.pt").exists()
    for name, weight in expected.items():
        assert (weight - found[name]).abs().max() < 1e-9, name


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_one_rank_over_nccl_runs_and_says_why_it_is_not_protected(
    backend: str, tmp_path: Path
) -> None:
    records = trained(tmp_path / "run", "nccl", ranks=1, backend=backend)

    ((promise, reason),) = promises(records)
    assert promise == "unprotected" and "one replica" in reason


def test_without_being_asked_for_a_model_on_the_gpu_is_not_protected(tmp_path: Path) -> None:
    records = trained(tmp_path / "run", "")

    assert {promise for promise, _ in promises(records)} == {"unprotected"}
    assert all("only on the CPU" in reason for _, reason in promises(records))
