"""`recoverrun doctor` takes the options of a run, and leaves with 83 where one would fail."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from recoverrun.cli.commands import doctor as command
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode


def _invoke(*words: str) -> Result:
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["doctor", *words])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")


def test_a_run_that_would_begin_has_no_error() -> None:
    ended = _invoke("--nproc-per-node", "2", "train.py", "--lr", "3e-4")

    assert ended.exit_code == 0, ended.output
    assert "torch 2." in ended.output
    assert ended.output.splitlines()[-1].strip().endswith("exit 0")


def test_without_a_script_the_node_is_looked_at_all_the_same() -> None:
    assert _invoke().exit_code == 0


def test_what_would_fail_gives_83_and_the_line_that_mends_it() -> None:
    ended = _invoke("no_such.py", "--json")

    told = json.loads(ended.output)
    assert ended.exit_code == told["exit_code"] == ExitCode.DOCTOR
    (wrong,) = [one for one in told["findings"] if one["level"] == "error"]
    assert wrong["check"] == "script"
    assert wrong["mend"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("folder",), "'folder' is a directory without a __main__.py"),
        (("-m", "no_such.module"), "there is no module 'no_such.module' to run"),
        (("--no-python", "no-such-program"), "there is no program 'no-such-program' to run"),
    ],
)
def test_whatever_the_run_would_not_start_is_told_in_its_words(
    tmp_path: Path, words: tuple[str, ...], found: str
) -> None:
    (tmp_path / "folder").mkdir()

    ended = _invoke(*words)

    assert ended.exit_code == ExitCode.DOCTOR
    assert found in ended.output


def test_an_option_that_cannot_be_meant_is_told_as_a_run_would() -> None:
    ended = _invoke("--nproc-per-node", "many", "train.py")

    assert isinstance(ended.exception, RecoverrunError)
    assert ended.exception.exit_code == 2


def test_an_address_that_goes_through_a_proxy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://name:secret@proxy:3128")

    ended = _invoke("--notify-url", "https://hooks.example/T0", "train.py")

    assert "--notify-url: https_proxy leads it through a proxy" in ended.output
    assert "secret" not in ended.output
