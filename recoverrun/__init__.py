"""A drop-in for torchrun whose training steps survive the loss of a replica."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace  # costs more than the rest of this file

__version__ = "0.1.0"


def main(args: Sequence[str] | None = None) -> None:
    """As torch.distributed.run.main; raises RecoverrunError where the job fails. See `entry`."""
    from recoverrun import entry  # Whoever only asks for the version needs no launcher.

    entry.main(args)


def run(args: "Namespace") -> None:
    """As torch.distributed.run.run; raises RecoverrunError where the job fails. See `entry`."""
    from recoverrun import entry

    entry.run(args)
