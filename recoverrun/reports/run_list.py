"""The runs below a directory, each in a line: told from the ends of its journals, not from all.

A journal of weeks is as quick to look at as one of a minute. Of several runs in one directory the
newest is told. What may be removed is decided here, and who lives is told by the caller.
"""

import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recoverrun.reports.find_run import PATTERN, has_journal
from recoverrun.reports.postmortem import STOPPED, meaning
from recoverrun.text import plural, run_title, sanitize
from rendezvous.journal.run_number import run_number
from rendezvous.journal.step_lines import STEPS
from rendezvous.protocol.exit_codes import code_of_job
from rendezvous.protocol.records import Json

END_BYTES = 64 << 10
"""Of each end of a journal that is looked at."""

START = b'"ev":"run.start"'

COMERS = ("node.join", "node.lost")
"""Records that name a node."""

Lines = Sequence[dict[str, Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run directory."""

    path: Path
    name: str  # below the directory of runs
    title: str
    began: float  # seconds since 1970; 0: unknown
    number: int  # by which it is newer than others; 0: none, older than all that have one
    nodes: int
    last_step: int  # the number of the newest one, -1: none
    cut: bool  # records behind that are missing
    exit_code: int | None  # None: a journal has no end
    size_bytes: int
    alive: bool  # a launcher on this machine is writing
    here: bool  # all of its launchers were on this machine

    @property
    def verdict(self) -> str:
        if self.alive:
            return "running"
        if self.exit_code is None:
            return "no end on record"
        if self.exit_code == 0:
            return "completed"
        said = meaning(self.exit_code)
        verb = "stopped" if self.exit_code in STOPPED else "failed"
        return f"{verb} ({self.exit_code}{f': {said}' if said else ''})"

    @property
    def removable(self) -> bool:
        """True if it is certain that nobody writes to it any more."""
        return not self.alive and (self.exit_code is not None or self.here)


def runs_below(top: Path, host: str, locked: Callable[[Path], bool]) -> list[Run]:
    """The runs in `top`, at most two levels down, newest first.

    `host` is this machine's name; `locked` is True if a launcher here writes to a directory.
    """
    places = [place for pattern in ("*", "*/*") for place in top.glob(pattern)]
    real = [place for place in places if not place.is_symlink() and has_journal(place)]
    found = [_run(place, top, host, alive=locked(place)) for place in real]
    return sorted(found, key=_age, reverse=True)


def prunable(
    runs: Iterable[Run], *, keep: int, older_than_s: float, now: float
) -> tuple[list[Run], list[Run]]:
    """(runs to remove, runs that the rule means but that may live): beyond the newest `keep` of
    each script, and begun more than `older_than_s` before `now`.
    """
    seen: dict[str, int] = {}
    meant = []
    for run in sorted(runs, key=_age, reverse=True):
        seen[run.title] = seen.get(run.title, 0) + 1
        if seen[run.title] > keep and now - run.began > older_than_s:
            meant.append(run)
    return [run for run in meant if run.removable], [run for run in meant if not run.removable]


def _age(run: Run) -> tuple[int, float, str]:
    return run.number, run.began, run.name


def table(runs: Sequence[Run], utc_offset_s: int) -> list[str]:
    """Aligned lines for people, with a head; what came from a journal is safe to print."""
    rows = [("RUN", "SCRIPT", "STARTED", "NODES", "LAST STEP", "SIZE", "VERDICT")]
    rows += [
        (
            sanitize(run.name, 60),
            sanitize(run.title, 30),
            _date(run.began, utc_offset_s),
            str(run.nodes),
            f"{run.last_step:,}" if run.last_step >= 0 else "-",
            size(run.size_bytes),
            sanitize(run.verdict, 60) + (", records are missing" if run.cut else ""),
        )
        for run in runs
    ]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = {3, 4, 5}
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, wide, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _date(began: float, utc_offset_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(began + utc_offset_s)) if began else "-"


def size(count: int) -> str:
    """Bytes as a person says them: 512 B, 27 KiB, 1.4 MiB."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"


def in_all(runs: Sequence[Run]) -> str:
    return f"{plural(len(runs), 'run')}, {size(sum(run.size_bytes for run in runs))}"


def to_json(run: Run) -> dict[str, Json]:
    """Plain values for programs; fields are only ever added within a schema."""
    return {
        "path": str(run.path),
        "name": run.name,
        "title": run.title,
        "began": run.began,
        "nodes": run.nodes,
        "last_step": run.last_step,
        "records_missing": run.cut,
        "exit_code": run.exit_code,
        "verdict": run.verdict,
        "size_bytes": run.size_bytes,
        "removable": run.removable,
    }


# ------------------------------------------------------------------------------ one run


def _run(place: Path, top: Path, host: str, *, alive: bool) -> Run:
    files = _of_newest({path: _ends(path) for path in sorted(place.glob(PATTERN))})
    starts = [line for lines in files.values() for line in lines if line.get("ev") == "run.start"]
    first = min(starts, key=_time, default={})
    hosts = {str(line.get("node")).partition(".")[0] for line in starts}
    nodes = _nodes(files, starts)
    return Run(
        path=place,
        name=str(place.relative_to(top)),
        title=run_title(_words(first, "argv"), str(first.get("run_id", ""))),
        began=_time(first),
        number=run_number(place, top),
        nodes=nodes,
        last_step=_newest_step(list(files.values())),
        cut=any(map(_is_cut, files.values())),
        exit_code=_exit_code(list(files.values())),
        size_bytes=_size(place),
        alive=alive,
        here=hosts == {host.partition(".")[0]} and len(files) >= nodes,
    )


def _of_newest(files: Mapping[Path, Lines]) -> dict[Path, Lines]:
    """The journals of the run that began last; one without a rank was none, if there are others."""
    starts = {
        path: next((line for line in lines if line["ev"] == "run.start"), {})
        for path, lines in files.items()
    }
    newest = max(
        starts.values(), key=lambda one: (one.get("world_size") != 0, _time(one)), default={}
    )
    return {
        path: files[path]
        for path, start in starts.items()
        if not start or _run_of(start) == _run_of(newest)
    }


def _run_of(start: dict[str, Json]) -> str:
    return str(start.get("folder") or start.get("run_id") or "")


def _nodes(files: Mapping[Path, Lines], starts: Lines) -> int:
    """The number of those that took part: that left a journal, or that others name or count."""
    names = {path.name.removeprefix("events.").removesuffix(".jsonl") for path in files}
    names |= {word for line in starts for word in _words(line, "nodes")}
    lines = (line for lines in files.values() for line in lines)
    names |= {str(one["name"]) for one in lines if one["ev"] in COMERS and one.get("name")}
    counted = (count for line in starts if isinstance(count := line.get("nnodes"), int))
    return max(len(names), *counted, 0)


def _exit_code(files: Sequence[Lines]) -> int | None:
    """The job's code, once every journal has its end or its node was said to be lost."""
    gone = _gone(files)
    codes: list[tuple[float, int]] = []  # by the time at which it was written
    for lines in files:
        marks = [line for line in lines if line["ev"] in ("run.start", "run.end")]
        last = marks[-1] if marks else None
        code = last.get("exit_code") if last is not None else None
        if last is not None and isinstance(code, int):
            codes.append((_time(last), code))
        elif _node(lines) not in gone:
            return None
    return code_of_job([code for _, code in sorted(codes)])


def _gone(files: Sequence[Lines]) -> set[str]:
    """Nodes that were said to be lost."""
    return {str(line.get("name")) for lines in files for line in lines if line["ev"] == "node.lost"}


def _node(lines: Lines) -> str:
    """The node whose journal it is, "" unknown."""
    return next((str(line["node"]) for line in lines if "node" in line), "")


def _newest_step(files: Sequence[Lines]) -> int:
    """The last one of a node that is not lost: others may have begun again at an older step."""
    gone = _gone(files)
    stayed = [lines for lines in files if _node(lines) not in gone] or files
    return max(map(_last_step, stayed), default=-1)


def _last_step(lines: Lines) -> int:
    steps = (line.get("step") for line in reversed(lines) if line["ev"] in STEPS)
    return next((step for step in steps if isinstance(step, int) and step < 1 << 53), -1)


def _is_cut(lines: Lines) -> bool:
    """True if steps after the last one on record are missing."""
    marks = [line for line in lines if line["ev"] in (*STEPS, "journal.drop")]
    step = marks[-1].get("step") if marks and marks[-1]["ev"] == "journal.drop" else -1
    return isinstance(step, int) and step >= 0


def _words(line: dict[str, Json], name: str) -> list[str]:
    found = line.get(name)
    return [str(word) for word in found] if isinstance(found, list) else []


def _time(line: dict[str, Json]) -> float:
    ts = line.get("ts")
    return float(ts) if isinstance(ts, int | float) and abs(ts) < 1e11 else 0.0


def _ends(path: Path) -> Lines:
    """The whole lines at the last beginning of a launcher and at the end of a journal that can be
    read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        length = os.fstat(fd).st_size
        begin = _last_start(fd) if length else 0
        data = [os.pread(fd, END_BYTES, begin)]
        if length > begin + END_BYTES:
            # The first line after a cut may be half of one: it is none that can be read.
            data.append(os.pread(fd, END_BYTES, max(begin + END_BYTES, length - END_BYTES)))
    except (OSError, ValueError):  # The second: another program has just cut it off.
        return []
    finally:
        os.close(fd)
    lines = (line for part in data for line in part.split(b"\n"))
    return [found for line in lines if (found := _line(line)) is not None]


def _last_start(fd: int) -> int:
    """Return the place of the line of the last `run.start`, 0 if there is none."""
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as journal:
        found = journal.rfind(START)
        return journal.rfind(b"\n", 0, found) + 1 if found >= 0 else 0


def _line(line: bytes) -> dict[str, Json] | None:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match raw:
        case {"ev": str()}:
            return dict(raw)
        case [_, _, int(step), _, _]:
            return {"ev": STEPS[0], "step": step}
        case _:
            return None


def _size(place: Path) -> int:
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # Removed meanwhile.
    return total
