"""The output of `postmortem`, and the codes that it leaves with."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from recoverrun.cli.commands import postmortem as command
from recoverrun.cli.commands import status as status_command
from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.postmortem_json import to_json
from rendezvous.journal.reader import read_run
from rendezvous.protocol.exit_codes import ExitCode
from tests.unit import journals
from tests.unit.journals import Story, two_steps
from tests.unit.run_status import status_of


def _app() -> typer.Typer:
    app = typer.Typer()
    command.register(app)
    status_command.register(app)
    return app


@pytest.mark.parametrize(
    ("name", "code"), [("one_loss", 0), ("cut_line", 1), ("launcher_killed", 1)]
)
def test_verify_leaves_with_the_verdict(tmp_path: Path, name: str, code: int) -> None:
    """Check 9 of the user experience: also of a launcher killed within its last line."""
    journals.RUNS[name](tmp_path)

    result = CliRunner().invoke(_app(), ["postmortem", str(tmp_path), "--verify"])

    assert result.exit_code == code, result.output


def test_verify_prints_the_violated_invariant_and_leaves_with_85(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    home = {slot: [(slot, index) for index in range(4)] for slot in range(3)}
    story.commit(3, {**home, 1: home[1][:3]}, microbatches=12)
    story.close()

    result = CliRunner().invoke(_app(), ["postmortem", str(tmp_path), "--verify"])

    assert result.exit_code == ExitCode.INVARIANT
    assert "INV-1 violated: step 3: microbatch 1:3 in no replica's account" in result.output


def test_the_next_command_is_one_line_however_long_it_is(tmp_path: Path) -> None:
    run_dir = tmp_path / ("a long name-" * 12)
    run_dir.mkdir()
    journals.RUNS["one_loss"](run_dir)

    result = CliRunner().invoke(_app(), ["postmortem", str(run_dir)], env={"COLUMNS": "80"})

    assert f"  recoverrun postmortem '{run_dir}' --verify" in result.output.splitlines()


def test_a_run_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    for words in (["postmortem", str(tmp_path)], ["status", str(tmp_path)]):
        result = CliRunner().invoke(_app(), words)
        assert result.exit_code == 2, result.output


def test_a_promise_that_came_down_is_told_with_its_first_step(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    for rank in (0, 2):
        reason = f"from here on equal-count: rank {rank} says why"
        story.write("notice.give", reason, rank=rank, event="promise.weaken")
    story.steps(3, 4)
    run_dir = story.close()

    found = postmortem(read_run(run_dir))
    page = CliRunner().invoke(_app(), ["postmortem", str(run_dir)]).output
    status = status_of(read_run(run_dir), now=0.0)

    why = "from here on equal-count: rank 0 says why"
    assert to_json(found)["promise"] == "exact-samples"
    assert to_json(found)["weakened"] == {"step": 3, "reason": why}
    assert " ".join(page.split()).count(f"step 3: {why}") == 1
    assert (status.promise, status.promise_reason) == ("equal-count", why)


def _of_two_nodes(tmp_path: Path, *, folders: tuple[str, str]) -> tuple[Path, Path]:
    """A run on two nodes that share no file system; the second node's script has ended first."""
    places = tmp_path / "a", tmp_path / "b"
    for node, (place, folder) in enumerate(zip(places, folders, strict=True)):
        place.mkdir()
        story = Story(place)
        name = f"gpu-0{node + 1}"
        story.write(
            "run.start", "", name, run_id="none", argv=["/home/me/train.py"], world_size=2,
            nnodes=2, version="1", inject="", nodes=["gpu-01", "gpu-02"], folder=folder,
        )  # fmt: skip
        story.write("worker.spawn", "", name, rank=node, pid=7, incarnation=0)
        story.write("topology.learn", "", name, strategy="ddp", replicas=[[0], [1]], part=node > 0)
        promise = {"promise": "exact-samples", "microbatches": 1, "part": node > 0}
        story.write("promise.state", "", name, **promise)
        for step in range(3):
            story.wait(0.1)
            quota = {"1": 1} if node else {"0": 1, "1": 1}
            event = "step.part" if node else "step.commit"
            story.write(
                event, "", name, step=step, generation=1, quota=quota, redone=0,
                microbatches=len(quota), total=2, ms=100.0,
            )  # fmt: skip
        story.write("run.end", "the end", name, exit_code=0, root_rank=-1)
        story.close()
    return places


def test_the_directories_of_several_nodes_are_one_run(tmp_path: Path) -> None:
    one, two = _of_two_nodes(tmp_path, folders=("train/1-1", "train/1-1"))

    both = CliRunner().invoke(_app(), ["postmortem", str(two), str(one)])
    alone = CliRunner().invoke(_app(), ["postmortem", str(two)])

    assert "recoverrun postmortem  train.py" in both.output
    assert "3/3 committed steps" in both.output and "3/3 committed steps" in alone.output
    assert "no journal of" not in both.output
    assert "no journal of gpu-01" in alone.output
    assert "vote's" in alone.output and "vote's" not in both.output
    again = both.output.replace("\n", "")
    assert f"{two} {one} --verify" in again.replace("  ", "")


def test_directories_of_two_runs_are_a_usage_error(tmp_path: Path) -> None:
    one, two = _of_two_nodes(tmp_path, folders=("train/1-1", "train/2-2"))

    result = CliRunner().invoke(_app(), ["postmortem", str(one), str(two)])

    assert result.exit_code == 2
    assert "these journals are of 2 runs: train/1-1, train/2-2" in result.output


def test_of_a_journal_that_is_there_twice_the_longer_one_is_read(tmp_path: Path) -> None:
    one, two = _of_two_nodes(tmp_path, folders=("train/1-1", "train/1-1"))
    path = one / "events.gpu-01.jsonl"
    (two / path.name).write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))

    result = CliRunner().invoke(_app(), ["postmortem", str(two), str(one), "--verify"])

    assert result.exit_code == 0, result.output
    assert "3/3" in result.output
