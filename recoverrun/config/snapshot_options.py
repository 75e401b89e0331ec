"""The options for snapshots: how often they are taken, what is written to a disk, and whether a job
goes on from it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from recoverrun.config import option_values
from recoverrun.config.option_values import one_of, usage
from rendezvous.bays.allowance import USUAL, Allowance, read
from rendezvous.protocol.worker_env import UNASKED

Resume = Literal["auto", "never", "must"]


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """The snapshot options of one launcher."""

    directory: Path | None = None
    resume: Resume = "auto"
    memory: Allowance = USUAL


class Wishes(Protocol):
    """The options of the command line that tell how often snapshots are taken."""

    @property
    def snapshot_every(self) -> str: ...

    @property
    def snapshot_dir(self) -> Path | None: ...

    @property
    def nnodes(self) -> str: ...


def snapshot_every(wishes: Wishes, *, protects: bool) -> str:
    """Steps from one snapshot to the next, or what `RecoveryPolicy` has in their place. Without a
    word of the user's: those that are to be in a directory are taken, others where nobody survives.
    A job that goes on with fewer nodes waits for none to go back. Raises RecoverrunError.
    """
    if wishes.snapshot_every or wishes.snapshot_dir is not None:
        return option_values.snapshot_every(wishes.snapshot_every or "auto", protects)
    least, most = option_values.nnodes(wishes.nnodes)
    return usual_every(protects=protects, least=least, most=most)


def usual_every(*, protects: bool, least: int, most: int) -> str:
    """The same where the user has said nothing, for a job of `least` to `most` nodes."""
    return UNASKED if protects and least == most else "0"


def snapshot_options(
    directory: Path | None, resume: str, memory: str, every: str
) -> SnapshotOptions:
    """`every` is the user's word on those in memory, "" if none. Raises RecoverrunError for what
    cannot be meant.
    """
    known: dict[str, Resume] = {"auto": "auto", "never": "never", "must": "must"}
    found = known[one_of("--snapshot-resume", resume, known)]
    if directory is None and found == "must":
        raise usage("--snapshot-resume=must needs --snapshot-dir")
    if directory is not None and every and not every.strip("0"):
        raise usage("--snapshot-dir needs snapshots in memory, not --snapshot-every=0")
    absolute = None if directory is None else directory.absolute()
    try:
        return SnapshotOptions(absolute, found, read(memory))
    except ValueError:
        words = "--snapshot-memory must be a size such as 200G, or a share such as 40%, not"
        raise usage(f"{words} {memory!r}") from None
