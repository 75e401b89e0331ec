"""What `postmortem` prints, and the codes that it leaves with."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from recoverrun.cli.commands import postmortem as command
from recoverrun.cli.commands import status as status_command
from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.status import status_of
from rendezvous.journal.reader import read_run
from tests.unit import journals
from tests.unit.journals import two_steps


def _app() -> typer.Typer:
    app = typer.Typer()
    command.register(app)
    status_command.register(app)
    return app


@pytest.mark.parametrize(
    ("name", "code"), [("one_loss", 0), ("cut_line", 1), ("launcher_killed", 1)]
)
def test_verify_leaves_with_the_verdict(tmp_path: Path, name: str, code: int) -> None:
    journals.RUNS[name](tmp_path)

    result = CliRunner().invoke(_app(), ["postmortem", str(tmp_path), "--verify"])

    assert result.exit_code == code, result.output


def test_verify_prints_the_violated_invariant_and_leaves_with_85(tmp_path: Path) -> None:
    scene = two_steps(tmp_path)
    home = {slot: [(slot, index) for index in range(4)] for slot in range(3)}
    scene.commit(3, {**home, 1: home[1][:3]}, microbatches=12)
    scene.close()

    result = CliRunner().invoke(_app(), ["postmortem", str(tmp_path), "--verify"])

    assert result.exit_code == 85
    assert "INV-1 violated: step 3: microbatch 1:3 in nobody's account" in result.output


def test_a_run_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    for words in (["postmortem", str(tmp_path)], ["status", str(tmp_path)]):
        result = CliRunner().invoke(_app(), words)
        assert result.exit_code == 2, result.output


def test_a_promise_that_came_down_is_told_with_its_first_step(tmp_path: Path) -> None:
    scene = two_steps(tmp_path)
    for rank in (0, 2):
        reason = f"from here on equal-count: rank {rank} says why"
        scene.write("notice.give", reason, rank=rank, event="promise.weaken")
    scene.steps(3, 4)
    run_dir = scene.close()

    found = postmortem(read_run(run_dir))
    page = CliRunner().invoke(_app(), ["postmortem", str(run_dir)]).output
    status = status_of(read_run(run_dir), now=0.0)

    why = "from here on equal-count: rank 0 says why"
    assert to_json(found)["promise"] == "exact-samples"
    assert to_json(found)["weakened"] == {"step": 3, "reason": why}
    assert " ".join(page.split()).count(f"step 3: {why}") == 1
    assert (status.promise, status.promise_reason) == ("equal-count", why)
