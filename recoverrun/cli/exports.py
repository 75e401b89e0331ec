"""Files that `postmortem` writes: each whole or not at all, and none unless it is asked for."""

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from recoverrun.errors import RecoverrunError
from recoverrun.reports.history import History
from recoverrun.reports.postmortem import Postmortem
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.run_list import size
from rendezvous.protocol.exit_codes import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """The target of each export; None: not written."""

    html: Path | None = None
    perfetto: Path | None = None
    csv: Path | None = None
    bundle: Path | None = None

    @property
    def any(self) -> bool:
        return any((self.html, self.perfetto, self.csv, self.bundle))


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The sources of exports. `about` (versions and so on) and `doctor` (the output of `recoverrun
    doctor --json` on this machine) go into a bundle; the latter is called only for that.
    """

    found: Postmortem
    facts: History
    run_dirs: tuple[Path, ...]
    utc_offset_s: int
    environment: Mapping[str, str]
    about: Mapping[str, object]
    doctor: Callable[[], str]


def export(exports: Exports, material: Material) -> list[str]:
    """Write what is asked for; a sentence for each file. RecoverrunError if one cannot be."""
    wanted: tuple[tuple[Path | None, Callable[[BinaryIO], None]], ...] = (
        (exports.html, lambda out: _write(out, (_html(material),))),
        (exports.perfetto, lambda out: _perfetto(out, material)),
        (exports.csv, lambda out: _csv(out, material)),
        (exports.bundle, lambda out: _bundle(out, material)),
    )
    said = []
    for path, write in wanted:
        if path is not None:
            _whole(path, write)
            said.append(f"wrote {path} ({size(path.stat().st_size)})")
    return said


def _whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Have `path` written beside its place first, so that nobody finds half of it."""
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as out:
                write(out)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
        except BaseException:  # Also an interrupt leaves nothing behind.
            os.unlink(name)
            raise
    except OSError as error:
        sentence = f"{path} cannot be written: {error.strerror or error}"
        raise RecoverrunError(sentence, ExitCode.FAILED) from None


def _write(out: BinaryIO, lines: Iterable[str]) -> None:
    for line in lines:
        out.write(line.encode("utf-8", "replace"))


def _html(material: Material) -> str:
    from recoverrun.reports.hang_stacks import hang_stacks  # Each export loads its own parts.
    from recoverrun.reports.html_page import html_page

    stacks = hang_stacks(*material.run_dirs, run=material.facts.folder)
    return html_page(material.found, material.facts, stacks, material.utc_offset_s)


def _perfetto(out: BinaryIO, material: Material) -> None:
    from recoverrun.reports.perfetto_trace import trace_lines

    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, compresslevel=6) as packed:
        lines = trace_lines(material.found, material.facts)
        packed.writelines(f"{line}\n".encode() for line in lines)


def _csv(out: BinaryIO, material: Material) -> None:
    from recoverrun.reports.step_table import step_rows

    _write(out, step_rows(material.facts))


def _bundle(out: BinaryIO, material: Material) -> None:
    from recoverrun.reports.bundle import write_bundle
    from recoverrun.reports.secret_masks import allowed

    about = {**material.about, "environment": allowed(material.environment)}
    reports = {
        "about.json": json.dumps(about, indent=2),
        "doctor.json": material.doctor(),
        "postmortem.json": json.dumps(to_json(material.found), indent=2),
        "report.html": _html(material),
    }
    name = f"recoverrun-{material.run_dirs[0].resolve().name}"
    write_bundle(out, name, material.run_dirs, reports)
