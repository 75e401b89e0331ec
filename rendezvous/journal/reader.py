"""Reads journals: one file, or all files of a run merged in order.

The files are input from a stranger: cut lines, garbage and lines of any length are skipped and
named, never guessed at.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rendezvous.journal.bounds import beyond
from rendezvous.journal.clock_alignment import Clocks, merged
from rendezvous.journal.events import ENVELOPE, EVENTS, FORMAT
from rendezvous.journal.newest_run import NewestRun
from rendezvous.journal.step_lines import STEPS, StepReader
from rendezvous.protocol.number_bounds import COUNT_MOST
from rendezvous.protocol.records import Json

LINE_LIMIT = 1 << 20
"""Bytes of a line that the reader keeps; longer lines are skipped."""

CHUNK_BYTES = 1 << 18
CUT = "cut off in the middle"
NAMELESS = 16  # Missing nodes without a name that are listed.
UNREADABLE_NAMED = 100  # Unreadable places that are named; all are counted.


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record as read. The accessors give the default where a field is absent or misshapen."""

    ts: float
    mono: float
    seq: int
    node: str
    event: str
    reason: str
    fields: Mapping[str, Json]

    def moved(self, ts: float) -> "Entry":
        """The same at another time."""
        return self if ts == self.ts else replace(self, ts=ts)

    def integer(self, name: str, default: int = -1) -> int:
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return default
        return float(value) if abs(value) < 1e15 else default  # False for NaN too

    def text(self, name: str, default: str = "") -> str:
        value = self.fields.get(name)
        return value if isinstance(value, str) else default

    def flag(self, name: str) -> bool:
        return self.fields.get(name) is True

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.fields.get(name)
        items = value if isinstance(value, list) else []
        return tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A place in a journal file that says nothing we can trust."""

    file: str
    line: int  # 1-based; 0: the file as a whole
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Numbers of one file between which records are missing (not written, or unreadable)."""

    node: str
    after: int
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """Everything that is left of a run, in order; never complete by assumption."""

    run_dir: Path
    entries: tuple[Entry, ...]
    nodes: tuple[str, ...]  # that left a file
    unreadable: tuple[Unreadable, ...] = ()  # the first of them
    unreadable_places: int = 0  # all of them
    gaps: tuple[Gap, ...] = ()
    unknown: tuple[str, ...] = ()  # event names that this version does not know
    others: tuple[Path, ...] = ()  # directories beside the first that journals were read from
    earlier: int = 0  # runs that these directories held before, of which nothing is here

    def of(self, *events: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.event in events)

    def last(self, *events: str) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.event in events), None)

    def missing_nodes(self) -> tuple[str, ...]:
        """The nodes that took part and left no file; those without a known name as "node ?"."""
        known: list[str] = []
        nnodes = 0
        for entry in self.of("run.start", "node.join", "node.lost"):
            nnodes = max(nnodes, entry.integer("nnodes", 0))
            listed = entry.fields.get("nodes")
            names = listed if isinstance(listed, list) else []
            known += [name for name in names if isinstance(name, str)]
            known += [entry.text("name")] if entry.text("name") else []
        absent = sorted(set(known) - set(self.nodes))
        nameless = max(0, nnodes - len(set(known) | set(self.nodes)))
        return tuple(absent) + ("node ?",) * min(nameless, NAMELESS)


class FileTail:
    """Reads what was appended to one journal file since the last call. Holds no file open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = path.name.removeprefix("events.").removesuffix(".jsonl")
        self.unreadable: list[Unreadable] = []
        self.places = 0
        self.gaps: list[Gap] = []
        self.unknown: set[str] = set()
        self._offset = 0
        self._line = 1
        self._rest = b""  # The beginning of a line whose end is not there yet.
        self._skip = False  # In a line beyond LINE_LIMIT.
        self._seq = -1
        self._steps = StepReader()

    def poll(self) -> list[Entry]:
        """The entries of whole lines that are new; what cannot be read is noted, never raised."""
        entries: list[Entry] = []
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            self._complain_once(0, f"cannot be opened: {error.strerror}")
            return entries
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                self._complain_once(0, "is not a regular file")
                return entries
            if facts.st_size < self._offset:
                self._complain(0, "became shorter: read again from its beginning")
                self._offset, self._line, self._rest, self._skip, self._seq = 0, 1, b"", False, -1
                self._steps = StepReader()
            while chunk := os.pread(fd, CHUNK_BYTES, self._offset):
                self._offset += len(chunk)
                entries += self._take(chunk)
        except OSError as error:
            self._complain_once(0, f"cannot be read: {error.strerror}")
        finally:
            os.close(fd)
        return entries

    def finish(self) -> list[Entry]:
        """Judge the rest without an end of line: nobody will complete it."""
        rest, self._rest = self._rest, b""
        if not rest or self._skip:
            return []
        entry, why = parse_line(rest, self.node, self._steps)
        if entry is None:
            if why:
                self._complain(self._line, CUT if why == "not JSON" else why)
            return []
        self._follow(entry)
        return [entry]

    def _take(self, chunk: bytes) -> list[Entry]:
        entries = []
        head, *tail = chunk.split(b"\n")
        pieces = [self._rest + head, *tail]
        for piece in pieces[:-1]:
            entry = self._whole(piece)
            if entry is not None:
                entries.append(entry)
            self._line += 1
        self._rest = pieces[-1]
        if len(self._rest) > LINE_LIMIT:
            if not self._skip:
                self._complain(self._line, f"longer than {LINE_LIMIT} bytes")
            self._skip = True
            self._rest = b""
        return entries

    def _whole(self, line: bytes) -> Entry | None:
        if self._skip:
            self._skip = False
            return None
        if not line.strip():
            return None
        if len(line) > LINE_LIMIT:
            self._complain(self._line, f"longer than {LINE_LIMIT} bytes")
            return None
        entry, why = parse_line(line, self.node, self._steps)
        if entry is None:
            if why:
                self._complain(self._line, why)
            return None
        self._follow(entry)
        return entry

    def _follow(self, entry: Entry) -> None:
        if entry.event == "journal.drop":  # It has the number of the last that is missing.
            self.gaps.append(Gap(node=entry.node, after=self._seq, before=entry.seq + 1))
        # Number 0 is a new launcher that appends to the file of its predecessor.
        elif entry.seq != self._seq + 1 and entry.seq != 0:
            self.gaps.append(Gap(node=entry.node, after=self._seq, before=entry.seq))
        self._seq = entry.seq
        if entry.event not in EVENTS:
            self.unknown.add(entry.event[:64])

    def _complain(self, line: int, why: str) -> None:
        self.places += 1
        if len(self.unreadable) < UNREADABLE_NAMED:
            self.unreadable.append(Unreadable(file=self.path.name, line=line, why=why))

    def _complain_once(self, line: int, why: str) -> None:
        if all(known.why != why for known in self.unreadable):
            self._complain(line, why)


def parse_line(line: bytes, node: str, steps: StepReader) -> tuple[Entry | None, str]:
    """The entry of one line, or None and why not; "" if that was said of a line before it.

    `node` stands in where the line names none; `steps` has seen the lines before this one.
    """
    try:
        told = json.loads(line.decode("utf-8"))
        raw, why = steps.whole(told)
    except (ValueError, RecursionError):
        return None, "not JSON"
    if raw is None:
        return None, why
    if not isinstance(raw, dict):
        return None, "not a JSON object"
    version, ts, mono, seq = raw.get("v"), raw.get("ts"), raw.get("mono", 0), raw.get("seq")
    if not isinstance(version, int) or not isinstance(raw.get("ev"), str):
        return None, "not a record"
    if version > FORMAT:
        return None, f"format {str(version)[:20]} of a newer recoverrun"
    if not isinstance(ts, int | float) or not isinstance(seq, int) or not 0 <= seq < COUNT_MOST:
        return None, "a record without time or number"
    if not isinstance(mono, int | float) or not (abs(ts) < 1e11 and abs(mono) < 1e11):
        return None, "a record with an impossible time"
    fields = {key: value for key, value in raw.items() if key not in ENVELOPE}
    # The part that a short line shares with a full one was checked there: it may be large.
    own = isinstance(told, list) and steps.sound
    number = beyond({"step": fields["step"], "ms": fields["ms"]} if own else fields)
    if number:
        return None, f"a number that no run can have: {number}"
    steps.sound = steps.sound or raw["ev"] in STEPS
    name, reason = raw.get("node"), raw.get("reason")
    return Entry(
        ts=float(ts),
        mono=float(mono),
        seq=seq,
        node=name if isinstance(name, str) else node,
        event=raw["ev"],
        reason=reason if isinstance(reason, str) else "",
        fields=fields,
    ), ""


class RunTail:
    """Reads what was appended to a run's journals since the last call, of all nodes.

    Nodes that share no file system leave a directory each. Where two of them hold a journal of one
    node, one is a copy, and the longer one is read. Of several runs in one directory the newest is
    read: `run` says which, and where it changes, entries of calls before are of another one.
    """

    def __init__(self, run_dir: Path, *others: Path) -> None:
        self.run_dir = run_dir
        self._others = others
        self._files: dict[str, FileTail] = {}
        self._clocks = Clocks()
        self._newest = {place: NewestRun() for place in (run_dir, *others)}

    @property
    def run(self) -> str:
        """The name of the run that entries are of; "" before its start was read."""
        return " ".join(one.name for one in self._newest.values())

    def poll(self, *, last: bool = False) -> list[Entry]:
        """The new entries of all nodes, merged; new files are found.

        `last`: judge lines without an end too, because this reader will not poll again.
        """
        for path in sorted(self._paths(), key=_size, reverse=True):
            self._files.setdefault(path.name, FileTail(path))
        read: list[list[Entry]] = []
        for place, newest in self._newest.items():
            files = [file for _, file in sorted(self._files.items()) if file.path.parent == place]
            new = [(file.node, file.poll() + (file.finish() if last else [])) for file in files]
            read += newest.take(new)
        return merged(self._clocks.align(read))

    def _paths(self) -> list[Path]:
        found: list[Path] = []
        for place in (self.run_dir, *self._others):
            with suppress(OSError):
                found += place.glob("events.*.jsonl")
        return found

    @property
    def places(self) -> int:
        """Unreadable places so far."""
        return sum(file.places for file in self._files.values())

    def log(self, entries: list[Entry]) -> RunLog:
        """`entries` with what is known about the files they came from."""
        files = [self._files[name] for name in sorted(self._files)]
        return RunLog(
            run_dir=self.run_dir,
            entries=tuple(entries),
            nodes=tuple(sorted({file.node for file in files})),
            unreadable=tuple(place for file in files for place in file.unreadable),
            unreadable_places=self.places,
            gaps=tuple(gap for file in files for gap in file.gaps),
            unknown=tuple(sorted({name for file in files for name in file.unknown})),
            others=self._others,
            earlier=sum(one.earlier for one in self._newest.values()),
        )


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def read_run(run_dir: Path, *others: Path) -> RunLog:
    """Everything readable of a run that is over, or of a live one as it stands now."""
    tail = RunTail(run_dir, *others)
    return tail.log(tail.poll(last=True))
