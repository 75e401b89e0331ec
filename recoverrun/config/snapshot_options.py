"""The options for snapshots on a disk: what is written, and whether a job goes on from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recoverrun.config.option_values import one_of, usage
from rendezvous.bays.allowance import USUAL, Allowance, read

Resume = Literal["auto", "never", "must"]


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """The snapshot options of one launcher."""

    directory: Path | None = None
    resume: Resume = "auto"
    memory: Allowance = USUAL


def snapshot_options(
    directory: Path | None, resume: str, memory: str, every: str
) -> SnapshotOptions:
    """`every` is that of snapshots in memory. Raises RecoverrunError for what cannot be meant."""
    known: dict[str, Resume] = {"auto": "auto", "never": "never", "must": "must"}
    found = known[one_of("--snapshot-resume", resume, known)]
    if directory is None and found == "must":
        raise usage("--snapshot-resume=must needs --snapshot-dir")
    if directory is not None and every == "0":
        raise usage("--snapshot-dir needs --snapshot-every: what is in memory is written there")
    absolute = None if directory is None else directory.absolute()
    try:
        return SnapshotOptions(absolute, found, read(memory))
    except ValueError:
        words = "--snapshot-memory must be a size such as 200G, or a share such as 40%, not"
        raise usage(f"{words} {memory!r}") from None
