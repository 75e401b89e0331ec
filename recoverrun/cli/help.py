"""The command line as typer sees it: help screens, and the commands besides `run`.

A job is never started from here (see `main`): the options of `run` are declared only to be shown.
"""

import inspect
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from recoverrun.cli.command_table import COMMANDS
from recoverrun.config import option_suggestions
from recoverrun.config.option_table import DEFAULTS, TABLE, Option, kind
from recoverrun.config.options import normalized
from recoverrun.errors import RecoverrunError
from recoverrun.version import __version__
from rendezvous.protocol.exit_codes import ExitCode

USAGE = "SCRIPT [ARGS]..."

EXAMPLES = """
Examples:

recoverrun --nproc-per-node 4 train.py --lr 3e-4

recoverrun --nnodes 2 --rdzv-endpoint gpu-01:29400 --nproc-per-node 8 train.py

Every PET_ variable of torchrun is honoured; the command line comes first.
"""

CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": normalized}


USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all errors in a command line: click's own class, or that of typer's copy of click."""


def _without_type(parameters: list[Any]) -> list[Any]:
    """The same parameters; a flag takes no value, so that its help shows no type."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = " "
    return parameters


class Command(TyperCommand):
    """A command whose arguments are shown as they are typed, and its flags without a type."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        declared = [str(one.metavar) for one in self.params if one.param_type_name == "argument"]
        return [self.options_metavar or "", *declared]

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))


class LazyCommands(TyperGroup):
    """Loads a command when it is called, or when a shell completes its options.

    Until then an empty command stands for it, with its name and its sentence.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, _loaded(name) if name in COMMANDS else command, rest


def program(*, completion: bool = False) -> typer.Typer:
    """The program with all its commands; `completion`: what shells ask for."""
    app = typer.Typer(
        cls=LazyCommands,
        invoke_without_command=True,
        context_settings=CONTEXT,
        subcommand_metavar=f"{USAGE} | COMMAND",
        epilog=EXAMPLES,
        add_completion=completion,
        pretty_exceptions_enable=False,
    )
    app.callback()(_with_options(_about))
    usage = f"[OPTIONS] {USAGE}"
    app.command("run", cls=Command, options_metavar=usage)(_with_options(_about_run))
    for name, sentence in COMMANDS.items():
        app.command(name, help=sentence)(_not_loaded)
    return app


def carried_out(arguments: list[str]) -> int:
    """Carry out a command that is not `run`; return its exit code. Raises RecoverrunError."""
    try:
        code = program()(args=arguments, prog_name="recoverrun", standalone_mode=False)
    except USAGE_ERROR as error:
        raise RecoverrunError(_sentence(error), ExitCode.USAGE) from None
    return code if isinstance(code, int) else ExitCode.DONE


def _sentence(error: Any) -> str:
    """An error in a command line of a command, as those of `run` are told."""
    if hasattr(error, "possibilities"):
        close = option_suggestions.meant(error.option_name, error.possibilities or (), ())
        said = (
            f"there is no option {error.option_name}{f', did you mean {close}?' if close else ''}"
        )
    else:
        said = error.format_message().rstrip(".")
    asked = error.ctx.command_path if error.ctx is not None else "recoverrun"
    return f"{said[:1].lower()}{said[1:]} (see `{asked} --help`)"


def _loaded(name: str) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    import_module(f"recoverrun.cli.commands.{name}").register(app)
    for command in app.registered_commands:
        command.cls = Command
    return get_command(app)


def _not_loaded() -> None:
    raise AssertionError("a command is loaded before it is called")


def _about(**_options: Any) -> None:
    """Run a training script on every GPU, and keep its steps whole when a replica is lost.

    A drop-in for torchrun: the script stays as it is, and so do its options.
    """


def _about_run(**_options: Any) -> None:
    """The same as without a command."""


def _with_options(function: Any) -> Any:
    """`function` with one parameter for each option of the table, as typer reads parameters."""
    parameters = [*map(_parameter, TABLE), _version_parameter()]
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {p.name: p.annotation for p in parameters}
    return function


def _parameter(option: Option) -> inspect.Parameter:
    default = DEFAULTS[option.field]
    declared = typer.Option(
        *option.shown_names,
        help=option.help,
        metavar=option.metavar or None,
        hidden=not option.panel,
        rich_help_panel=option.panel,
        show_default=option.shown_default or default not in (None, "", False),
    )
    hint: Any = kind(option) if default is not None else kind(option) | None
    return inspect.Parameter(
        option.field,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[hint, declared],
        default=default,
    )


def _version_parameter() -> inspect.Parameter:
    declared = typer.Option(
        "--version", callback=_version, is_eager=True, help="Print the version."
    )
    return inspect.Parameter(
        "version",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[bool, declared],
        default=False,
    )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"recoverrun {__version__}")
        raise typer.Exit()
