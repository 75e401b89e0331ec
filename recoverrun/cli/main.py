"""The entry point: which command is meant, and what an error looks like. No other logic."""

import json
import os
import platform
import sys
from difflib import get_close_matches
from pathlib import Path

from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.errors import ExitCode, RecoverrunError
from recoverrun.version import __version__

OTHERS = ("status", "postmortem", "demo", "inject", "config", "keygen", "witness")
"""Commands besides `run`, each in the module of its name."""


def main() -> None:
    """Entry point of the program `recoverrun`."""
    arguments = sys.argv[1:]
    try:
        sys.exit(_main(arguments))
    except RecoverrunError as error:
        print(f"recoverrun: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def _main(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if "--json" in arguments and set(arguments) == {"--version", "--json"}:
        print(json.dumps(versions()))
        return ExitCode.DONE
    if first not in OTHERS:
        options = read(arguments[1:] if first == "run" else arguments, os.environ)
        if options is not None:
            command = options.command[0] if options.command else ""
            if command in (*OTHERS, "run") and first != "run":
                raise RecoverrunError(f"{command!r} must come before {first}", ExitCode.USAGE)
            if not (options.module or options.no_python or Path(command).exists()):
                _refuse_typo(command)
            if options.dry_run:
                from recoverrun.cli.commands.dryrun import dry_run

                return dry_run(parse_options(options, os.environ))
            # Not at the top, as below: a help screen needs no launcher, a launcher no help screen.
            from recoverrun.cli.commands.run import run

            return run(parse_options(options, os.environ))
    from recoverrun.cli.help import program

    if first == "inject":
        from recoverrun.cli.commands.inject import own_first

        arguments = [first, *own_first(arguments[1:])]
    program([first] if first in OTHERS else OTHERS)(args=arguments, prog_name="recoverrun")
    return ExitCode.DONE


def versions() -> dict[str, object]:
    """What a program may ask for: recoverrun, and what it stands on ("" where it is missing)."""
    from importlib import metadata  # Not at the top: a launcher has no use for it.

    found: dict[str, object] = {"schema": 1, "recoverrun": __version__}
    found["python"] = platform.python_version()
    for name in ("torch", "pyzmq", "msgpack"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def _refuse_typo(command: str) -> None:
    """Perhaps the script that does not exist was meant to be a command."""
    close = get_close_matches(command, (*OTHERS, "run"), n=1)
    if close and close[0] != command:
        sentence = f"there is no script {command!r}, did you mean the command {close[0]!r}?"
        raise RecoverrunError(sentence, ExitCode.USAGE)
