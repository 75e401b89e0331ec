"""The entry point: which command is meant, and what an error looks like. No other logic.

What the commands are made of is imported in the functions, where a Ctrl-C is answered with a
sentence: at the top of this file it would be a traceback.
"""

import os
import sys
from typing import TextIO

from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode

COMPLETION = ("--install-completion", "--show-completion")

COMPLETING = "_RECOVERRUN_COMPLETE"
"""Set by a shell that asks what may follow."""


def main() -> None:
    """Entry point of the program `recoverrun`."""
    try:
        code = _code(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()  # Here, or Python would find at its end that nobody reads it.
    except BrokenPipeError:
        # `recoverrun ... | head`: the reader has seen enough, which is no error of anybody.
        _give_up(sys.stdout)
        code = ExitCode.FAILED
    except OSError as error:
        if not _is_refused(sys.stdout):
            raise
        _give_up(sys.stdout)
        _tell(f"the output cannot be written: {error.strerror}")
        code = ExitCode.FAILED
    sys.exit(code)


def _code(arguments: list[str]) -> int:
    """Carry out the command line; return the exit code."""
    try:
        return _main(arguments)
    except RecoverrunError as error:
        _tell(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _tell("stopped by SIGINT")
        return ExitCode.INTERRUPTED


def _tell(words: str) -> None:
    """Say why there is nothing more; that nobody reads it changes no exit code."""
    try:
        print(f"recoverrun: {words}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _give_up(sys.stderr)


def _is_refused(stream: TextIO | None) -> bool:
    """True if nothing more can be printed there, as on a disk that is full."""
    try:
        if stream is not None:
            os.write(stream.fileno(), b"\n")
    except OSError:
        return True
    return False


def _give_up(stream: TextIO) -> None:
    """Have what is left for a stream that nobody reads go nowhere, also at Python's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _main(arguments: list[str]) -> int:
    from recoverrun.cli.command_table import COMMANDS
    from recoverrun.config.options import normalized

    first = arguments[0] if arguments else ""
    if "--json" in arguments and set(arguments) == {"--version", "--json"}:
        import json

        from recoverrun.version import versions

        print(json.dumps(versions()))
        return ExitCode.DONE
    name, _, shell = first.partition("=")
    if normalized(name) == "--print-completion":
        from recoverrun.cli.completion import completion_script

        print(completion_script(shell or "".join(arguments[1:2]), COMPLETING))
        return ExitCode.DONE
    if first in COMPLETION or COMPLETING in os.environ:
        from recoverrun.cli.help import program

        program(completion=True)(args=arguments, prog_name="recoverrun")
        return ExitCode.DONE
    if first not in COMMANDS:
        ended = _launched(arguments, first)
        if ended is not None:
            return ended
    # A help screen needs no launcher, and a launcher no help screen.
    from recoverrun.cli.help import carried_out

    if first == "inject":
        from recoverrun.cli.commands.inject import own_first

        arguments = [first, *own_first(arguments[1:])]
    return carried_out(arguments)


def _launched(arguments: list[str], first: str) -> int | None:
    """Launch what the command line says; None if it asks for help instead."""
    from recoverrun.cli.command_table import COMMANDS
    from recoverrun.config.options import read
    from recoverrun.config.run_config import parse_options
    from rendezvous.protocol.process_title import entitle

    options = read(arguments[1:] if first == "run" else arguments, os.environ)
    if options is None:
        return None
    command = options.command[0] if options.command else ""
    if command in (*COMMANDS, "run") and first != "run":
        raise RecoverrunError(f"{command!r} must come before {first}", ExitCode.USAGE)
    if not (options.module or options.no_python or os.path.exists(command)):
        _refuse_typo(command)
    config = parse_options(options, os.environ)
    if options.dry_run:
        from recoverrun.cli.commands.dryrun import dry_run

        return dry_run(config)
    from recoverrun.cli.commands.run import run

    entitle("launcher", config.script)
    return run(config, options)


def _refuse_typo(command: str) -> None:
    """Perhaps the script that does not exist was meant to be a command."""
    from difflib import get_close_matches

    from recoverrun.cli.command_table import COMMANDS

    close = get_close_matches(command, (*COMMANDS, "run"), n=1)
    if close and close[0] != command:
        sentence = f"there is no script {command!r}, did you mean the command {close[0]!r}?"
        raise RecoverrunError(sentence, ExitCode.USAGE)
