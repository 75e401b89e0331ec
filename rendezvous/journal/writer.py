"""Appends the records of one node to its journal: facts, one JSON line each.

Every launcher appends to a file of its own, so no two processes share a line, and every line is one
write(2): a launcher that is killed can cut off its last line and nothing else. The journal serves
people after a loss, so writing it must never cost the job anything: a full disk is counted and told
later (`journal.drop`), never raised.
"""

import json
import math
import os
import re
import stat
from pathlib import Path

from rendezvous.journal.events import DURABLE, ENVELOPE, EVENTS, FORMAT
from rendezvous.protocol.effects import Json, Record

TEXT_LIMIT = 4096
"""Characters that one string of a record may have; longer ones are clipped at the writer."""


def journal_path(run_dir: Path, node: str) -> Path:
    """The file of one node's records; characters that a file name cannot carry become "_"."""
    return run_dir / f"events.{re.sub(r'[^A-Za-z0-9._-]', '_', node)[:128]}.jsonl"


def _plain(value: Json) -> Json:
    """`value` with long strings clipped and non-finite numbers (no JSON) as null."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else value[: TEXT_LIMIT - 1] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _check(record: Record) -> None:
    known = EVENTS.get(record.event)
    assert known is not None, f"no such journal event: {record.event!r} (see EVENTS)"
    absent = [name for name in known.required if name not in record.fields]
    assert not absent, f"{record.event} without {absent}: {dict(record.fields)}"
    clash = sorted(ENVELOPE & record.fields.keys())
    assert not clash, f"{record.event}: fields {clash} belong to the line, not to the event"


class Journal:
    """Appends records of one node. Not thread-safe: the launcher has one thread."""

    def __init__(self, path: Path, node: str, origin: float) -> None:
        """Open or create `path`; `origin` is the monotonic time at which the launcher started.

        Raises OSError where the file cannot be had: at start that is an error for the user.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = os.open(path, flags, 0o600)
        facts = os.fstat(self._fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(self._fd)
            raise OSError(f"{path} is not a regular file")
        size = facts.st_size
        # A predecessor killed in the middle of its line: ours must not become part of it.
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        self._node = node
        self._origin = origin
        self._seq = 0
        self._dropped = 0

    def append(self, record: Record, *, mono: float, wall: float) -> None:
        """Write one line. Never raises OSError: what cannot be written is counted and told later.

        `mono` is in seconds of the clock that gave `origin`, `wall` in seconds since 1970.
        """
        _check(record)
        if self._dropped:
            count: dict[str, Json] = {"records": self._dropped}
            told = Record(event="journal.drop", reason="the disk took no records", fields=count)
            if self._write(told, mono=mono, wall=wall):
                self._dropped = 0
        if self._dropped or not self._write(record, mono=mono, wall=wall):
            # The number is used up, so that the reader sees the gap.
            self._seq += 1
            self._dropped += 1
        elif record.event in DURABLE:
            try:
                os.fsync(self._fd)
            except OSError:
                pass  # The line is in the page cache, which is all that any other record has.

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, record: Record, *, mono: float, wall: float) -> bool:
        line: dict[str, Json] = {
            "v": FORMAT,
            "ts": round(wall, 6),
            "mono": round(mono - self._origin, 6),
            "seq": self._seq,
            "node": self._node,
            "ev": record.event,
            "reason": record.reason,
        }
        line.update(record.fields)
        text = json.dumps(_plain(line), separators=(",", ":"), allow_nan=False) + "\n"
        data = (b"\n" if self._torn else b"") + text.encode("ascii")
        try:
            written = os.write(self._fd, data)
        except OSError:
            return False
        self._torn = written != len(data)
        if self._torn:
            return False
        self._seq += 1
        return True
