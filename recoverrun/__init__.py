"""A drop-in for torchrun whose training steps survive the loss of a replica."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recoverrun.version import __version__ as __version__

if TYPE_CHECKING:
    from argparse import Namespace  # costs more than the rest of this file


def main(args: Sequence[str] | None = None) -> None:
    """As torch.distributed.run.main; raises RecoverrunError where the job fails. See `cli.api`."""
    from recoverrun.cli import api  # Whoever only asks for the version needs no launcher.

    api.main(args)


def run(args: "Namespace") -> None:
    """As torch.distributed.run.run; raises RecoverrunError where the job fails. See `cli.api`."""
    from recoverrun.cli import api

    api.run(args)
