"""Whole runs on one GPU, by the launcher, with and without losses.

NCCL takes no two ranks of one device, unless they seem to be on different hosts (`NCCL_HOSTID`):
then they talk over sockets, as nodes do.
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

needs_nccl = pytest.mark.skipif(DEVICE == "cpu", reason="NCCL needs a GPU")
WAYS = [("host", "gloo"), pytest.param("nccl", "nccl", marks=needs_nccl)]


def trained(out: Path, way: str, *options: str, ranks: int = 2, backend: str = "gloo") -> Any:
    """Run to the end; the journal's records. The weights are in `out`."""
    out.mkdir()
    launcher = [one for one in options if one.startswith(("--inject", "--return"))]
    alone = [] if "--return" in launcher else ["--no-return"]
    ended = subprocess.run(
        [
            sys.executable, "-m", "recoverrun", f"--nproc-per-node={ranks}", *alone, *launcher,
            f"--run-dir={out}/journal", str(SCRIPT), f"--out={out}", f"--device={DEVICE}",
            f"--backend={backend}", *(option for option in options if option not in launcher),
        ],
        env={**os.environ, "RECOVERRUN_CUDA": way},
        capture_output=True, text=True, timeout=150, cwd=out,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    files = [path.read_bytes().splitlines() for path in out.glob("journal/events.*.jsonl")]
    return [line for file in files for line in full_lines(file)]


def promises(records: Any) -> list[tuple[str, str]]:
    return [(r["promise"], r["reason"]) for r in records if r["ev"] == "promise.state"]


def weights(out: Path, rank: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(out / f"weights{rank}.pt", weights_only=True)
    return found


def lost(records: Any) -> set[int]:
    return {r["root_rank"] for r in records if r["ev"] == "replica.lost"}


@pytest.mark.parametrize(("way", "backend"), WAYS)
@pytest.mark.parametrize(
    ("inject", "ranks"),
    [
        ("r1@step:3:reduce", 2),
        ("r0@step:2:forward", 2),
        ("r1@step:4:vote", 2),
        ("r2@step:2:backward,r0@step:4:reduce:0", 3),
    ],
)
def test_a_loss_on_the_gpu_changes_the_weights_by_rounding_only(
    inject: str, ranks: int, way: str, backend: str, tmp_path: Path
) -> None:
    """All microbatches are alike: one of them in the place of another changes nothing."""
    whole = trained(tmp_path / "whole", way, "--alike", ranks=ranks, backend=backend)
    dead = {int(kill[1]) for kill in inject.split(",")}

    broken = trained(
        tmp_path / "broken", way, f"--inject={inject}", "--alike", ranks=ranks, backend=backend
    )

    assert lost(whole) == set() and lost(broken) == dead
    expected = weights(tmp_path / "whole", 0)
    for rank in range(ranks):
        if rank in dead:
            assert not (tmp_path / f"broken/weights{rank}.pt").exists()
            continue
        found = weights(tmp_path / "broken", rank)
        for name, weight in expected.items():
            assert (weight - found[name]).abs().max() < 1e-9, (rank, name)


@pytest.mark.parametrize(("way", "backend"), WAYS)
def test_a_lost_replica_comes_back(way: str, backend: str, tmp_path: Path) -> None:
    """Its process gets parameters and moments from a survivor, by way of both hosts."""
    steps = ("--alike", "--steps=60")
    whole = trained(tmp_path / "whole", way, *steps, backend=backend)

    faults = "--inject=r1@step:3:reduce,pace:800"
    broken = trained(tmp_path / "broken", way, faults, "--return", *steps, backend=backend)

    assert lost(whole) == set() and lost(broken) == {1}
    assert [r["ranks"] for r in broken if r["ev"] == "replica.return"] == [[1]]
    expected = weights(tmp_path / "whole", 0)
    for rank in range(2):
        found = weights(tmp_path / "broken", rank)
        for name, weight in expected.items():
            assert (weight - found[name]).abs().max() < 1e-8, (rank, name)


@pytest.mark.parametrize(("way", "backend"), WAYS)
def test_what_a_run_on_the_gpu_promises(way: str, backend: str, tmp_path: Path) -> None:
    records = trained(tmp_path / "run", way, backend=backend)

    promised = {"cpu": "exact-samples"}.get(DEVICE, "equal-count")
    assert {promise for promise, _ in promises(records)} == {promised}, promises(records)


@needs_nccl
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_one_rank_over_nccl_runs_and_says_why_it_is_not_protected(
    backend: str, tmp_path: Path
) -> None:
    records = trained(tmp_path / "run", "nccl", ranks=1, backend=backend)

    ((promise, reason),) = promises(records)
    assert promise == "unprotected" and "one replica" in reason


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=needs_nccl)])
def test_without_being_asked_for_a_model_on_the_gpu_is_not_protected(
    backend: str, tmp_path: Path
) -> None:
    records = trained(tmp_path / "run", "", backend=backend)

    promised = {"cpu": "exact-samples"}.get(DEVICE, "unprotected")
    assert {promise for promise, _ in promises(records)} == {promised}
    if DEVICE != "cpu":
        assert any("only if it is asked for" in reason for _, reason in promises(records))


@needs_nccl
@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp2", "hand"])
def test_what_is_not_served_on_a_gpu_says_so_and_trains(wrap: str, tmp_path: Path) -> None:
    records = trained(tmp_path / "run", "nccl", f"--wrap={wrap}", backend="nccl")

    assert {promise for promise, _ in promises(records)} == {"unprotected"}
    assert all("only" in reason and "CPU" in reason for _, reason in promises(records))
