"""A drop-in for torchrun whose training steps survive the loss of a replica."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recoverrun.version import __version__ as __version__

if TYPE_CHECKING:
    from argparse import Namespace  # costs more than the rest of this file
    from os import PathLike

    from recoverrun.cli.api import RecordedRun


def main(args: Sequence[str] | None = None) -> None:
    """Stands for torch.distributed.run.main; raises RecoverrunError where the job fails."""
    from recoverrun.cli import api  # Whoever only asks for the version needs no launcher.

    api.main(args)


def run(args: "Namespace") -> None:
    """Stands for torch.distributed.run.run; raises RecoverrunError where the job fails."""
    from recoverrun.cli import api

    api.run(args)


def read_run(run_dir: "str | PathLike[str]", *others: "str | PathLike[str]") -> "RecordedRun":
    """The record of a run, from the journals in its directory: docs/reports.md.

    `others` are directories that other nodes of the same run have left. The run may be over, dead,
    or still going; a directory without journals gives a run with outcome "empty".
    """
    from recoverrun.cli import api

    return api.read_run(run_dir, *others)
