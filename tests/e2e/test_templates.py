"""The templates are plain PyTorch: they run under torchrun, learn, and repeat bitwise."""

import re
from pathlib import Path

import pytest
import torch

from tests.bench import jobs
from tests.e2e.plain import unspoilt

TEMPLATES = Path(__file__).resolve().parent.parent.parent / "templates"
LINE = re.compile(r"step (\d+) loss ([\d.]+) lr [\d.e-]+ \d+ tok/s")
WITHIN_S = 50.0


def torchrun(script: str, ranks: int, *arguments: str, folder: Path) -> list[float]:
    """Run a template and return its losses."""

    def attempt(number: int) -> jobs.Ran:
        place = folder / str(number)
        place.mkdir(parents=True)
        path = str(TEMPLATES / script)
        return jobs.run(
            "torchrun",
            ranks,
            path,
            arguments,
            directory=place,
            timeout_s=WITHIN_S,
            CUDA_VISIBLE_DEVICES="",
        )

    done = unspoilt(attempt, lambda ran: ran.errors, lambda ran: ran.code is None)
    assert done.code == 0, done.errors[-3000:]
    found = [match for line in done.output.splitlines() if (match := LINE.search(line))]
    assert [int(match[1]) for match in found] == list(range(len(found)))
    return [float(match[2]) for match in found]


@pytest.mark.rest
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("script", "ranks", "steps"),
    [
        ("gpt_hsdp.py", 4, "--steps=12"),
        pytest.param("gpt_ddp.py", 3, "--max-steps=12", marks=pytest.mark.matrix),
    ],
)
def test_a_template_learns_and_repeats_itself_bitwise(
    script: str, ranks: int, steps: str, tmp_path: Path
) -> None:
    runs = [
        torchrun(script, ranks, steps, f"--out={tmp_path / name}", folder=tmp_path / f"run-{name}")
        for name in "ab"
    ]
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
