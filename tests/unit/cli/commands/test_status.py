"""The output of `status` where there is no terminal."""

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from recoverrun.cli.commands import postmortem as command
from recoverrun.cli.commands import status as status_command
from tests.unit import journals


def _app() -> typer.Typer:
    app = typer.Typer()
    command.register(app)
    status_command.register(app)
    return app


def test_status_prints_plain_lines_or_json_where_there_is_no_terminal(tmp_path: Path) -> None:
    journals.live(tmp_path)

    plain = CliRunner().invoke(_app(), ["status", str(tmp_path)])
    machine = CliRunner().invoke(_app(), ["status", str(tmp_path), "--json"])

    assert "12/12 microbatches" in plain.output
    assert "\x1b" not in plain.output
    assert json.loads(machine.output)["last_step"] == 20


def test_stacks_of_an_earlier_run_in_the_same_directory_are_not_shown(tmp_path: Path) -> None:
    journals.live(tmp_path)
    follower = status_command.Follower(tmp_path)
    status = follower.read()
    for hang, name in ((1, "earlier"), (2, "tiny-hsdp")):
        kept = tmp_path / "hangs" / str(hang) / "rank1.stack"
        kept.parent.mkdir(parents=True)
        kept.write_text(f"run {name}\nstands in a lock")

    assert [stack.hang for stack in follower.stacks(status)] == [2]
