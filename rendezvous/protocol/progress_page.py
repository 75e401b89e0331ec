"""The position of a worker, in a page of shared memory that its launcher reads.

The script's thread writes one mark wherever it passes one of our hooks: no system call, no lock,
about a microsecond. Nothing of the worker runs when the page is read, so it tells where a process
stands that is stopped, that keeps Python's global lock or that the kernel does not let go.

A mark is written in one copy and carries a check: a reader never believes half of one.
"""

import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from io import FileIO
from threading import get_ident
from typing import NamedTuple
from zlib import crc32

WHAT_BYTES = 40
"""Of the words for what is waited for."""

_NUMBERS = struct.Struct("<QQQIIBIIIIII")
_PHASE = struct.Struct("<QQQIIB")  # the first of these; the others are of a wait
_WAIT = struct.Struct("<IIIIII")
_CHECK = struct.Struct("<I")
_SIZE = _NUMBERS.size + WHAT_BYTES
PAGE_BYTES = _SIZE + _CHECK.size

_MASK = (1 << 32) - 1

NO_LIMIT_MS = _MASK
"""A wait that has no time limit, or one of more than 49 days."""


class Phase(IntEnum):
    """The activity of a worker. Each has its own history of times (`hang_limits`)."""

    FIRST = 0  # in what torch does alone, whose waits are not seen: the first step, or all of them
    MICROBATCH = 1  # in the body of the training loop
    DATA = 2  # takes the next item of a loop
    FIRST_DATA = 3  # takes the first item of a loop: workers start, files are opened
    SETTLE = 4  # at the end of a transaction
    BETWEEN = 5  # after a transaction: the optimizer, evaluation, checkpoints
    ALONE = 6  # does what the script does on rank 0 alone
    REDO = 7  # computes a lost rank's microbatch
    PROOF = 8  # proves that microbatches can be made up
    END = 9  # the script has ended


class Wait(NamedTuple):
    """The wait of a worker for operation `number` of a channel, in `generation`. All numbers are
    below 2**32.

    `ranks` (first, stride, count) are the members of the channel; count 0: they are not told.
    """

    channel: int
    number: int
    generation: int
    limit_ms: int
    ranks: tuple[int, int, int]
    what: str


class ProgressMark(NamedTuple):
    """One mark: `serial` grows by one with each. `since_ns` is of this machine's clock."""

    serial: int
    since_ns: int
    phase: Phase
    step: int
    microbatch: int
    wait: Wait | None


NO_THREAD = -1

_WAITS = 0x80

_CHECKPOINT = _WAITS + len(Phase)
"""Where the time of checkpoints is counted, whatever phase they are in."""

_NO_WAIT = bytes(_WAIT.size + WHAT_BYTES)


def page_beside(context: str) -> str:
    """The path of a worker's page; `context` is that of what it leaves in shared memory."""
    return f"{context}.progress"


DUMP_SIGNAL = signal.SIGRTMIN
"""Has faulthandler write all stacks of a worker, in C: also where Python's lock is kept."""


def stacks_beside(context: str) -> str:
    """The path of the file to which a worker writes its stacks when it is asked to."""
    return f"{context}.stacks"


def dump_beside(context: str) -> str:
    """The path of the file to which DUMP_SIGNAL has them written: another one, as a process that
    it disturbs may go on, and answer what it was asked before.
    """
    return f"{context}.dump"


class ProgressWriter:
    """Writes the page at `path`, "" for none. What other threads than its maker say is ignored."""

    def __init__(self, path: str, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Raises OSError if the page cannot be made."""
        self._clock = clock
        self._thread = get_ident()
        self._map = _mapped(path) if path else None
        self._serial = 0
        self._phase, self._step, self._index = Phase.FIRST, 0, 0
        self._begun = False
        self._tails: dict[str, bytes] = {}  # of waits, by what they are for
        self._since, self._at = clock(), int(Phase.FIRST)
        self._saving = False  # a checkpoint is written or read
        self._spent = [0] * (_CHECKPOINT + 1)  # nanoseconds, by phase; while waiting, apart
        self._put(self._phase)

    def detach(self) -> None:
        """Write nothing from now on: this process is a copy of the one that is meant.

        The page stays mapped: whoever copies the memory of a process counts on what it found.
        """
        self._thread = NO_THREAD

    @property
    def phase(self) -> Phase:
        """The phase of the last mark."""
        return self._phase

    def protects(self) -> None:
        """The first transaction is over: from now on phases are told apart."""
        self._begun = True

    def at(self, phase: Phase, step: int | None = None, index: int | None = None) -> None:
        """The worker begins or goes on with `phase`; None: of the same step, the same index."""
        self._phase = phase = phase if self._begun else Phase.FIRST
        if step is not None:
            self._step = step
        if index is not None:
            self._index = index & _MASK
        self._put(phase)

    def waits(self, wait: Wait) -> None:
        """The worker begins to wait for other ranks, or for the coordinator."""
        tail = self._tails.get(wait.what)
        if tail is None:
            tail = self._tails[wait.what] = wait.what.encode()[:WHAT_BYTES].ljust(WHAT_BYTES, b"\0")
        channel, number, generation, limit_ms, (first, stride, count), _ = wait
        numbers = _WAIT.pack(channel, generation, limit_ms, first, stride, count)
        self._put(self._phase | _WAITS, number, numbers + tail)

    def spent_ms(self) -> dict[str, float]:
        """Milliseconds in phases that may be to blame for a slow step, since the last call."""
        spent, self._spent = self._spent, [0] * len(self._spent)
        data = spent[Phase.DATA] + spent[Phase.FIRST_DATA]
        return {
            "data": data / 1e6,
            "alone": spent[Phase.ALONE] / 1e6,
            "checkpoint": spent[_CHECKPOINT] / 1e6,
        }

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Mark the code within as writing or reading a checkpoint. The mark stays that of the phase
        around.
        """
        if self._saving or get_ident() != self._thread:
            yield
            return
        self._saves(True)
        try:
            yield
        finally:
            self._saves(False)

    def _saves(self, saving: bool) -> None:
        self._saving = saving
        self._put(self._phase)

    def goes_on(self) -> None:
        """The wait is over, or was given up."""
        self._put(self._phase)

    def _put(self, phase: int, number: int = 0, wait: bytes = _NO_WAIT) -> None:
        page = self._map
        if page is None or get_ident() != self._thread:
            return
        self._serial += 1
        now = self._clock()
        self._spent[self._at] += now - self._since
        self._since, self._at = now, _CHECKPOINT if self._saving else phase
        content = _PHASE.pack(self._serial, now, self._step, self._index, number, phase) + wait
        page[:] = content + _CHECK.pack(crc32(content))


def key_of(name: str) -> int:
    """The number that stands for the name of a channel."""
    return crc32(name.encode())


def members(ranks: Sequence[int]) -> tuple[int, int, int]:
    """(first, stride, count) of `ranks`, if they are an arithmetic progression; else count 0."""
    if not ranks:
        return 0, 0, 0
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = all(b - a == stride for a, b in zip(ranks, ranks[1:], strict=False))
    return (ranks[0], stride, len(ranks)) if even and stride > 0 else (0, 0, 0)


def spread(ranks: tuple[int, int, int]) -> range | None:
    """The members that `members` wrote down; None if they were not told."""
    first, stride, count = ranks
    return range(first, first + stride * count, stride) if count and stride else None


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(fd, 0, PAGE_BYTES)  # a full file system is an error here, no SIGBUS
        return mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)


class PageReader:
    """Reads the page at `path`, also after somebody has removed the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: FileIO | None = None  # once there is one

    def read(self) -> ProgressMark | None:
        """The mark in it; None if there is none, or only half of one."""
        try:
            if self._file is None:
                self._file = FileIO(self._path)
            return parse(os.pread(self._file.fileno(), PAGE_BYTES, 0))
        except OSError:
            return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_page(path: str) -> ProgressMark | None:
    """The mark in the page at `path`; None if there is none, or only half of one."""
    try:
        with open(path, "rb") as file:
            return parse(file.read(PAGE_BYTES))
    except OSError:
        return None


def parse(content: bytes) -> ProgressMark | None:
    """The mark that `content` holds. Never raises."""
    if len(content) != PAGE_BYTES:
        return None
    if _CHECK.pack(crc32(content[:_SIZE])) != content[_SIZE:]:
        return None
    (serial, since_ns, step, index, number, phase, channel, generation, limit_ms, *ranks) = (
        _NUMBERS.unpack_from(content)
    )
    if phase & ~_WAITS >= len(Phase) or not serial:
        return None
    wait = None
    if phase & _WAITS:
        what = content[_NUMBERS.size : _SIZE].rstrip(b"\0").decode(errors="ignore")
        first, stride, count = ranks
        wait = Wait(channel, number, generation, limit_ms, (first, stride, count), what)
    return ProgressMark(serial, since_ns, Phase(phase & ~_WAITS), step, index, wait)
