"""The help screen: what it loads, and what it says of commands that it has not loaded."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

import pytest
import typer

from recoverrun.cli.command_table import COMMANDS
from recoverrun.cli.help import carried_out

LOADED = """
import sys
from recoverrun.cli.main import main
sys.argv[1:] = {!r}
try:
    main()
finally:
    print("loaded:", *sorted(sys.modules))
"""

READERS_OF_OPTIONS = {
    "recoverrun", "recoverrun.cli", "recoverrun.config", "recoverrun.errors", "recoverrun.text",
    "recoverrun.version",
}  # fmt: skip

FOR_A_JOB = {"msgpack", "torch", "zmq"}


def _loaded(*arguments: str) -> set[str]:
    """The modules that `recoverrun ARGUMENTS` has loaded at its end."""
    code = LOADED.format(list(arguments))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.splitlines()[-1].removeprefix("loaded:").split())


def _packages(modules: set[str]) -> set[str]:
    """Those of recoverrun, to the second part of their names."""
    return {".".join(name.split(".")[:2]) for name in modules if name.split(".")[0] == "recoverrun"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_what_reads_options_and_no_command(option: str) -> None:
    modules = _loaded(option)

    assert _packages(modules) == READERS_OF_OPTIONS
    assert not any(name.startswith("recoverrun.cli.commands") for name in modules)
    assert not modules & FOR_A_JOB


def test_the_version_draws_no_screen() -> None:
    assert "rich" not in _loaded("--version")


def test_help_of_a_command_loads_that_command_alone() -> None:
    modules = _loaded("keygen", "--help")

    commands = {name for name in modules if name.startswith("recoverrun.cli.commands.")}
    assert commands == {"recoverrun.cli.commands.keygen"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_the_command_says_of_itself(name: str) -> None:
    app = typer.Typer()
    import_module(f"recoverrun.cli.commands.{name}").register(app)

    [command] = app.registered_commands
    assert command.name == name
    said = inspect.cleandoc(command.callback.__doc__ or "") if command.callback else ""
    assert " ".join(said.split("\n\n")[0].split()) == COMMANDS[name]


@pytest.fixture(name="screen")
def _screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """The help screen of a command."""
    monkeypatch.setenv("COLUMNS", "100")

    def screen(command: str) -> str:
        assert carried_out([*command.split(), "--help"]) == 0
        return capsys.readouterr().out.strip()

    return screen


@pytest.mark.parametrize("name", ["", "run", *COMMANDS])
def test_an_option_shows_the_value_that_is_typed_and_a_flag_none(
    name: str, screen: Callable[[str], str]
) -> None:
    options = [line for line in screen(name).splitlines() if line.lstrip("│* ").startswith("-")]

    assert any("--help" in line for line in options)
    assert not [line for line in options if re.search("<[a-z]", line)]


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("status", "[OPTIONS] [RUN]"),
        ("postmortem", "[OPTIONS] [RUN]..."),
        ("inject", "[OPTIONS] [RECOVERRUN OPTIONS] SCRIPT [ARGS]..."),
        ("run", "[OPTIONS] SCRIPT [ARGS]..."),
    ],
)
def test_the_usage_of_a_command_has_its_arguments_once_in_brackets(
    name: str, usage: str, screen: Callable[[str], str]
) -> None:
    first = screen(name).splitlines()[0]

    assert " ".join(first.split()) == f"Usage: recoverrun {name} {usage}"
