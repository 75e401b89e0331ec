"""The journal of one node as a file: a line is one write(2), and a full disk is survived.

Every launcher appends to a file of its own, so no two processes share a line: a launcher that is
killed can cut off its last line and nothing else. What the disk does not take is counted, and told
in the place where it is missing (`journal.drop`).

Short lines of steps stand on a full line before them (`step_lines`). Where that one is missing,
they are written in full.

A full disk must not hide how a run ended. So the file keeps a reserve of its disk behind its end,
which no reader sees (fallocate with KEEP_SIZE). Ordinary lines leave it alone; the records that
matter most, and the word that others are missing, go into it. File systems without that call have
no reserve.

The calls block, for as long as the file system does.
"""

import ctypes
import errno
import os
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path

from rendezvous.journal.lines import JournalLine, Lines, Missing, joined
from rendezvous.journal.step_lines import STEPS

RESERVE_BYTES = 64 << 10
"""At least half of it is left for essential lines when the disk is full."""

_KEEP_SIZE = 1
_NO_SUCH_CALL = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)


class JournalFile:
    """Appends lines. One thread at a time."""

    def __init__(self, path: Path, lines: Lines) -> None:
        """Open or create `path`. Raises OSError where it cannot be had."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = os.open(path, flags, 0o600)
        facts = os.fstat(self._fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(self._fd)
            raise OSError(f"{path} is not a regular file")
        self._size = facts.st_size
        # A predecessor killed in the middle of its line: ours must not become part of it.
        self._torn = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"
        self._lines = lines
        self._full = -1  # the number of the last full line of a step
        self._untold: Missing | None = None
        self._why = ""  # it is missing
        self._reserved: int | None = self._size  # up to there; None: there is no reserve
        self.trouble = ""
        """Why the disk does not take ordinary lines; "" while it does."""
        self.removed = False
        """Nobody finds the file any more: what is written is lost with it."""
        self.refused: deque[Missing] = deque()
        """What the disk did not take: for another thread to take out."""

    def write(self, line: JournalLine) -> None:
        """Write one line. Raises nothing: what cannot be written is missing from then on."""
        if line.refers >= 0 and line.refers != self._full:
            line = self._lines.full(line)  # what it relies on is not in the file
        try:
            full = self._keep_reserve(len(line.data))
            if full is not None and not line.essential:
                raise full
            self._tell()
            self._put(line.data)
            self._look()
            if line.refers < 0 and line.record.event in STEPS:
                self._full = line.seq
        except OSError as error:
            self._lines.begin_anew()
            missing = Missing.of(line)
            self.refused.append(missing)
            self._lack(missing, _why(error))
            # Once for each trouble: a line for each line would use up the reserve.
            if not self.trouble:
                with suppress(OSError):
                    self._tell()
            self.trouble = _why(error)
            return
        if full is None:
            self.trouble = ""
        if line.essential:
            with suppress(OSError):  # The line is in the page cache, as all others are.
                os.fsync(self._fd)

    def skip(self, missing: Missing, why: str) -> None:
        """Say that lines are missing which nobody has tried to write. Raises nothing."""
        self._lack(missing, why)
        try:
            self._tell()
        except OSError as error:
            self.trouble = _why(error)

    def retry(self) -> None:
        """See whether the disk takes lines again and the file is there, with none to be written."""
        self._look()
        full = self._keep_reserve(0)
        if full is not None:
            self.trouble = _why(full)
            return
        with suppress(OSError):
            told = self._untold is not None
            self._tell()
            if told or self._reserved is not None:
                self.trouble = ""

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd < 0:
            return
        with suppress(OSError):
            self._tell()
        with suppress(OSError):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # Gives the reserve back.
        os.close(self._fd)
        self._fd = -1

    def _look(self) -> None:
        with suppress(OSError):
            self.removed = self.removed or os.fstat(self._fd).st_nlink == 0

    def _lack(self, missing: Missing, why: str) -> None:
        self._untold = joined(self._untold, missing)
        self._why = why

    def _tell(self) -> None:
        """Say what is missing. Raises OSError where that cannot be written either."""
        if self._untold is not None:
            self._put(self._lines.told(self._untold, f"the disk took no records: {self._why}"))
            self._untold = None

    def _put(self, data: bytes) -> None:
        whole = (b"\n" if self._torn else b"") + data
        written = os.write(self._fd, whole)
        self._size += written
        self._torn = written != len(whole)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _keep_reserve(self, more: int) -> OSError | None:
        """Have a reserve behind the end of the file as it is after `more` bytes; or why not."""
        end = self._size + more
        if self._reserved is None or end + RESERVE_BYTES // 2 <= self._reserved:
            return None
        error = _allocate(self._fd, self._size, more + RESERVE_BYTES)
        if error is None:
            self._reserved = end + RESERVE_BYTES
        elif error.errno in _NO_SUCH_CALL:
            self._reserved = None
            return None
        return error


def _allocate(fd: int, offset: int, count: int) -> OSError | None:
    """Give the file these bytes of the disk without making it longer."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None:
        return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(fd, _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(count)) == 0:
        return None
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _why(error: OSError) -> str:
    return error.strerror or str(error)
