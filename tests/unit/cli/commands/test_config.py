"""The options that a run in this directory would have, as `config` prints them."""

import typer
from typer.testing import CliRunner

from recoverrun.cli.commands import config as command


def _printed(*arguments: str) -> str:
    app = typer.Typer()
    app.callback()(lambda: None)  # With one command alone its name would not be asked for.
    command.register(app)
    done = CliRunner().invoke(app, ["config", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_options_are_shown_without_a_word() -> None:
    assert _printed() == _printed("show")
    assert "nnodes = 1\n" in _printed()


def test_options_of_the_run_are_among_them() -> None:
    assert "nnodes = 2\n" in _printed("show", "--nnodes", "2")
    assert "nnodes = 2\n" in _printed("--nnodes", "2")


def test_an_option_has_the_name_under_which_help_shows_it() -> None:
    printed = _printed("--coord", "etcd://head:2379", "--on-silence=continue")

    assert "\netcd = etcd://head:2379\n" in printed
    assert "\non-partition = continue\n" in printed
