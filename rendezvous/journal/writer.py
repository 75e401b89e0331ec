"""Writes the journal of one node: facts, one JSON line each, without ever waiting for a disk.

The journal serves people after a loss, so writing it must never cost the job anything. A thread
does it: each line is written as soon as it is there, and whoever records waits for nothing but an
entry in a queue. No record has to be on disk before something is done: they are in the order in
which they were recorded, and that is all that a reader relies on. Where the disk stalls, the queue
holds what there is to write, up to a bound; what finds it full is missing, as what a full disk
refuses is, and the journal tells how much that is as soon as it can (`journal.drop`).
"""

import re
from collections import deque
from pathlib import Path

from rendezvous.journal.journal_file import JournalFile
from rendezvous.journal.lines import JournalLine, Lines, Missing, joined
from rendezvous.journal.spool import Spool
from rendezvous.protocol.records import Record

OPENING_S = 0.5
"""How long the beginning waits to hear that the file cannot be had at all."""

STALL_S = 2.0
"""A line that takes longer is a trouble of the disk."""

RETRY_S = 1.0
"""How often a disk that refuses is tried, where there is nothing to be written."""

LOOK_S = 2.0
"""The pause between two looks at whether the file is still there."""

MOST_LINES = 20_000
MOST_BYTES = 8 << 20
"""What waits for the disk."""


def journal_path(run_dir: Path, node: str) -> Path:
    """The file of one node's records; characters that a file name cannot carry become "_"."""
    return run_dir / f"events.{re.sub(r'[^A-Za-z0-9._-]', '_', node)[:128]}.jsonl"


class Journal:
    """Appends records of one node. For one thread, which never waits but where it says so."""

    def __init__(
        self, path: Path, node: str, origin: float, *, most_lines: int = MOST_LINES
    ) -> None:
        """Open or create `path`; `origin` is the monotonic time at which the launcher started.

        Waits for OPENING_S at most. Raises OSError where the file cannot be had, as far as that is
        known by then: at start it is an error for the user.
        """
        self._lines = Lines(node, origin)
        self._path = path
        self._file: JournalFile | None = None  # the thread's
        self._refusal: OSError | None = None
        self._spool = Spool("journal", self._take, most=most_lines, most_bytes=MOST_BYTES)
        self._refused: Missing | None = None  # by the full queue, since the last that it took
        self._missed: deque[Missing] = deque()  # not asked for yet
        self._retry_at = 0.0
        self._spool.put(None)
        self._spool.flush(OPENING_S)
        if self._refusal is not None:
            raise self._refusal

    def append(self, record: Record, *, mono: float, wall: float) -> None:
        """Have one line written. Raises nothing of the disk.

        `mono` is in seconds of the clock that gave `origin`, `wall` in seconds since 1970.
        """
        line = self._lines.line(record, mono=mono, wall=wall)
        self._tell_refused(always=line.essential)
        full = self._refused is not None
        if (full and not line.essential) or not self._hand(line):
            self._lines.begin_anew()
            missing = Missing.of(line)
            self._missed.append(missing)
            self._refused = joined(self._refused, missing)

    def tick(self, now: float) -> None:
        """Time passed: say what is missing, and see whether the disk takes lines again, and
        whether the file is still there.
        """
        self._tell_refused(always=False)
        refuses = self._refusal is not None or (self._file is not None and self._file.trouble)
        if now >= self._retry_at:
            self._retry_at = now + (RETRY_S if refuses else LOOK_S)
            if not self._spool.waiting:
                self._spool.put(None)

    def trouble(self, now: float) -> str:
        """The reason why the disk does not take the journal; "" while it does."""
        if self._refusal is not None:
            return self._refusal.strerror or str(self._refusal)
        if self._file is not None and self._file.trouble:
            return self._file.trouble
        stalled_s = self._spool.stalled_s(now)
        return f"the disk stalls for {stalled_s:.0f} s" if stalled_s >= STALL_S else ""

    @property
    def removed(self) -> bool:
        """True once somebody has removed the file, alone or with its directory."""
        return self._file is not None and self._file.removed

    @property
    def behind(self) -> int:
        """Lines that are not in the file yet."""
        return self._spool.waiting

    def missed(self) -> Missing | None:
        """The records that the file lacks, or will lack, since the last call."""
        found: Missing | None = None
        for missed in (self._missed, *(() if self._file is None else (self._file.refused,))):
            while missed:
                found = joined(found, missed.popleft())
        return found

    def flush(self, within_s: float) -> bool:
        """Wait until all lines are with the kernel, `within_s` at most. True if they are."""
        return self._spool.flush(within_s)

    def close(self, within_s: float) -> int:
        """Write what is left and close the file. Returns how many lines are left after all."""
        self._tell_refused(always=True)
        left = self._spool.close(within_s)
        if not left and self._file is not None:
            self._file.close()
        return left

    def _hand(self, thing: JournalLine | Missing) -> bool:
        if isinstance(thing, Missing):
            return self._spool.put(thing)
        return self._spool.put(thing, len(thing.data), always=thing.essential)

    def _tell_refused(self, *, always: bool) -> None:
        """Tell of refused records in their place: behind all that was taken before, and before all
        that is taken later.
        """
        if self._refused is not None and self._spool.put(self._refused, always=always):
            self._refused = None

    def _take(self, thing: JournalLine | Missing | None) -> None:
        """Write a record, in the thread. None: open the file, or see if it takes lines again."""
        if self._file is None:
            try:
                self._file = JournalFile(self._path, self._lines)
                self._refusal = None
            except OSError as error:
                self._refusal = error
                if isinstance(thing, JournalLine):
                    self._missed.append(Missing.of(thing))
                return
        if thing is None:
            self._file.retry()
        elif isinstance(thing, Missing):
            self._file.skip(thing, "it stalled")
        else:
            self._file.write(thing)
