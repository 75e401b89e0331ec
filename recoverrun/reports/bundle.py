"""One archive to attach to a bug report: journals, tails of logs, stacks, the report; no secrets.

Only files that recoverrun has written are taken, each masked (`secret_masks`), and none that is not
a regular file of its folder.
"""

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from recoverrun.reports.find_run import PATTERN
from recoverrun.reports.hang_stacks import MOST_BYTES, read_text
from recoverrun.reports.secret_masks import masked

JOURNAL_BYTES = 64 << 20
LOG_BYTES = 128 << 10
LOGS = 512

TAKEN = (
    (PATTERN, JOURNAL_BYTES, False),
    ("error.*.json", LOG_BYTES, False),
    ("hangs/*/*.stack", MOST_BYTES, False),
    ("logs/**/*.log", LOG_BYTES, True),
    ("logs/**/error.json", LOG_BYTES, True),
)
"""(files below the run directory, bytes of each, whether the last ones)."""


def write_bundle(
    out: BinaryIO, name: str, run_dirs: tuple[Path, ...], reports: Mapping[str, str]
) -> list[str]:
    """Write the archive, all of it in a folder `name`; return its members.

    `reports` are texts by file name, masked like the rest. Raises OSError if it cannot be written.
    """
    members = []
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for member, text in (*reports.items(), *_files(run_dirs)):
            data = masked(text).encode("utf-8", "replace")
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
            members.append(member)
    return members


def _files(run_dirs: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """(path in the archive, text) of what is taken."""
    for number, place in enumerate(run_dirs):
        folder = f"run{number}/" if len(run_dirs) > 1 else "run/"
        for pattern, most, tail in TAKEN:
            for path in sorted(place.glob(pattern))[:LOGS]:
                if _leads_out(path, place):
                    continue
                text = read_text(path, most, tail=tail)
                if text:
                    yield folder + str(path.relative_to(place)), text


def _leads_out(path: Path, place: Path) -> bool:
    """True if a link on the way leads to another place."""
    try:
        return path.resolve() != place.resolve() / path.relative_to(place)
    except (OSError, RuntimeError):
        return True
