"""The templates are plain PyTorch: they run under torchrun, learn, and repeat bitwise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.e2e.plain import unaborted

TEMPLATES = Path(__file__).resolve().parent.parent.parent / "templates"
LINE = re.compile(r"step (\d+) loss ([\d.]+) lr [\d.e-]+ \d+ tok/s")


def torchrun(script: str, ranks: int, *arguments: str) -> list[float]:
    """Run a template and return its losses."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = unaborted(
        lambda _: subprocess.run(
            [*command, str(TEMPLATES / script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        ),
        lambda done: done.stderr,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [match for line in done.stdout.splitlines() if (match := LINE.search(line))]
    assert [int(match[1]) for match in found] == list(range(len(found)))
    return [float(match[2]) for match in found]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("script", "ranks", "steps"),
    [("gpt_hsdp.py", 4, "--steps=12"), ("gpt_ddp.py", 3, "--max-steps=12")],
)
def test_a_template_learns_and_repeats_itself_bitwise(
    script: str, ranks: int, steps: str, tmp_path: Path
) -> None:
    runs = [torchrun(script, ranks, steps, f"--out={tmp_path / name}") for name in "ab"]
    a, b = (torch.load(tmp_path / name, weights_only=True) for name in "ab")

    assert len(runs[0]) == 12
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0] - 0.5
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_templates_share_nothing_with_us_and_stay_readable() -> None:
    for path in sorted(TEMPLATES.glob("gpt_*.py")):
        text = path.read_text()

        assert "recoverrun" not in text
        assert len(text.splitlines()) < 250
