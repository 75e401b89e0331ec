"""Buffers that ranks take over from rank 0, as running means: they are what torchrun leaves."""

from pathlib import Path

import pytest
import torch

from tests.e2e.script_runs import SCRIPTS, run, under_torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

SCRIPT = SCRIPTS / "running_means.py"
BETWEEN_EPOCHS = ("epoch0.pt", "epoch1.pt", "epoch2.pt")


def left(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.name: torch.load(path) for path in sorted(folder.glob("*.pt"))}


@pytest.mark.parametrize(
    ("ranks", "accumulated", "ways", "kills"),
    [
        (2, 1, (), "r0@step:3:forward"),
        (2, 1, ("used",), "r0@step:7:vote"),
        (2, 1, ("used",), "r1@step:4:reduce"),
        (2, 1, ("annealed",), "r0@step:4:forward"),
        (2, 3, (), "r0@step:4:reduce"),
        (3, 1, (), "r0@step:2:vote,r1@step:8:forward"),
        (3, 1, ("used",), "r0@step:6:between"),
        (3, 1, ("used", "annealed"), "r0@step:6:between"),
        (3, 3, (), "r0@step:4:backward"),
    ],
)
def test_after_any_loss_buffers_are_those_of_the_run_without_it(
    ranks: int, accumulated: int, ways: tuple[str, ...], kills: str, tmp_path: Path
) -> None:
    """Also where the loss depends on them, or the script changes them between steps, and where two
    have shared what rank 0 had to do.
    """
    arguments = (str(accumulated), *ways)
    plain = under_torchrun(SCRIPT, tmp_path, *arguments, ranks=ranks)
    killed = run(SCRIPT, tmp_path / "killed", *arguments, ranks=ranks, inject=kills)

    assert (plain.code, killed.code) == (0, 0), plain.text + killed.text
    assert killed.promises == ("exact-samples",), killed.text
    expected, found = left(next(tmp_path.glob("plain*"))), left(tmp_path / "killed")
    assert {*BETWEEN_EPOCHS} <= found.keys() <= expected.keys()
    assert found.keys() & {f"rank{rank}.pt" for rank in range(ranks)}, "of survivors"
    for name, state in found.items():
        for key, tensor in state.items():
            torch.testing.assert_close(tensor, expected[name][key], rtol=0, atol=5e-7, msg=name)
