"""A run without a loss adds up gradients in torch's order, so that every bit is torchrun's.

With three replicas it shows: (a + b) + c is not a + (b + c), 1/3 is rounded, and gloo's order for
an element depends on how many elements are reduced together.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "scripts/sums_of_three.py"
RANKS = 3


@pytest.mark.parametrize(
    "way",
    [
        "buckets",
        "unused",
        pytest.param("static", marks=pytest.mark.rest),
        pytest.param("views", marks=pytest.mark.rest),
        pytest.param("views-zeroed", marks=pytest.mark.rest),
        pytest.param("by-hand", marks=pytest.mark.rest),
        pytest.param("by-hand-flat", marks=pytest.mark.rest),
        "by-hand-divided",
        pytest.param("by-hand-multiplied", marks=pytest.mark.rest),
        pytest.param("by-hand-flat-divided", marks=pytest.mark.rest),
        pytest.param("by-hand-some", marks=pytest.mark.rest),
    ],
)
def test_weights_without_a_loss_are_torchruns(way: str, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ours = [sys.executable, "-m", "recoverrun", f"--run-dir={tmp_path / 'run'}"]

    # All ranks have trained where the file is there. What comes after it is not compared: torch's
    # own threads end one plain run in twelve by an abort as its processes end.
    _, theirs = _weights(torchrun, way, tmp_path / "theirs.pt")
    ran, found = _weights(ours, way, tmp_path / "ours.pt")

    assert ran.returncode == 0, ran.stderr
    assert "exact-samples" in ran.stderr
    assert [name for name in theirs if not torch.equal(theirs[name], found[name])] == []


def _weights(
    launcher: list[str], way: str, path: Path
) -> tuple[subprocess.CompletedProcess[str], dict[str, torch.Tensor]]:
    ran = subprocess.run(
        [*launcher, f"--nproc-per-node={RANKS}", str(SCRIPT), way, str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert path.exists(), ran.stderr
    return ran, torch.load(path)
