"""The doors for programs: what wrappers of torchrun call, with the same names and arguments.

`main(args)` stands in for `torch.distributed.run.main`, and `run(namespace)` for the function of
that name, which takes what torch's own parser returned. Both return when the job has ended well,
and raise RecoverrunError with its exit code otherwise. Main thread only: they handle signals.
`read_run(directory)` tells what happened in a run.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recoverrun.config.given_options import Options
from recoverrun.config.option_table import TABLE
from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from recoverrun.reports.recorded_run import RecordedRun as RecordedRun


def main(args: Sequence[str] | None = None) -> None:
    """Run the job of a command line (default: this process's)."""
    options = read(list(sys.argv[1:] if args is None else args), os.environ)
    if options is None:
        raise RecoverrunError("help is on the command line: recoverrun --help", ExitCode.USAGE)
    _launch(options)


def run(args: Namespace) -> None:
    """Run the job of a namespace of torchrun's parser."""
    known = {option.field for option in TABLE}
    given: dict[str, Any] = {
        name: value for name, value in vars(args).items() if name in known and value is not None
    }
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        words = given.get(name, "")
        given[name] = words if isinstance(words, str) else ",".join(words)
    if given.get("log_dir") is not None:
        given["log_dir"] = Path(given["log_dir"])
    command = (args.training_script, *args.training_script_args)
    _launch(Options(command=command, **given))


def read_run(run_dir: str | os.PathLike[str], *others: str | os.PathLike[str]) -> "RecordedRun":
    """A run that is over, dead or still going; `others` are directories of its other nodes."""
    from recoverrun.reports.recorded_run import recorded_run  # Only now: a launcher has no use.

    return recorded_run(Path(run_dir), *map(Path, others))


def _launch(options: Options) -> None:
    from recoverrun.cli.commands.run import run as start  # Only now: a launcher's machinery.

    code = start(parse_options(options, os.environ), options)
    if code:
        raise RecoverrunError(f"the job ended with exit code {code}", code)
