"""The shared memory that a worker leaves behind, so that a SIGKILL cannot take it along.

The file holds two buffers of equal size. Each begins with a header (sequence, length, crc32 of the
payload), then the payload. The writer fills the older buffer, payload first and header last, so the
newer one is whole at every instant: killed anywhere, a worker leaves at least its last but one
state. The reader believes a buffer only if the checksum agrees. The payload is opaque here.

Behind the buffers lies a ring of marks, one for each microbatch: which one it is, and digests of
what entered it and of its loss. A mark is written anew as more is known of its microbatch.

At the end stand the microbatches of the present transaction that the worker has begun, of its own
and of lost slots. Who dies within the transaction has died of one of them, as far as anybody can
tell: what its code has broken (a descriptor that it closed, say) may end the process only later.

The memory belongs to the kernel once it is mapped; no flush is needed for it to outlive the writer.
"""

import mmap
import os
import struct
import zlib
from contextlib import suppress

HEADER = struct.Struct("<QQQ")
MARK = struct.Struct("<IIIII")  # transaction, microbatch, digests of inputs and loss, check
CHECKED = struct.Struct("<IIII")  # of a mark
MARKS = 128
"""Kept of the latest microbatches."""

MARKS_BYTES = MARKS * MARK.size
BEGUN = struct.Struct("<IIIIII")  # as in `Begun`, and a check
BEGUN_CHECKED = struct.Struct("<IIIII")
BEGUNS = 32
"""Stretches of microbatches that are kept; the oldest make room."""

TAIL_BYTES = MARKS_BYTES + BEGUNS * BEGUN.size
"""What lies behind the buffers."""

Begun = tuple[int, int, int, int, int]
"""Slot, transaction, first and last index of microbatches that a worker has begun one after the
other, and 1 if it has given them up, else 0."""

LEAST_BYTES = 16 << 10
MOST_BYTES = 1 << 20
"""Larger payloads are not left: a reader must not be made to hold what it cannot pass on."""

FILE_BYTES = 2 * (HEADER.size + MOST_BYTES) + TAIL_BYTES
"""The size that a file may come to."""


def error_beside(context: str) -> str:
    """The path to which a worker's last exception goes where its own file has no room; "" if
    nothing is to be left. `context` is that of the worker's memory.
    """
    return f"{context}.error" if context else ""


def buffers_beside(context: str) -> str:
    """The path of the memory for buffers that other ranks take over from a worker; "" if nothing is
    to be left. `context` is that of the worker's memory.
    """
    return f"{context}.buffers" if context else ""


class Writer:
    """Maps the file and leaves the latest payload in it. One thread only."""

    def __init__(self, path: str, capacity: int = LEAST_BYTES) -> None:
        """Create `path` anew for payloads of `capacity` bytes; it grows. Raises OSError."""
        self._path = path
        self._sequence = 0
        self._half = 0
        self._map: mmap.mmap | None = None
        self._last = b""
        self._marks, self._marked = 0, (-1, -1)
        self._resize(capacity)

    def write(self, payload: bytes) -> bool:
        """Leave `payload`; the one before stays readable until the next call. A file that somebody
        has removed is made again.

        False if it is larger than MOST_BYTES, or the file has to grow and its file system is full,
        as of a container with little shared memory: then nothing changes.
        """
        if len(payload) > MOST_BYTES:
            return False
        if HEADER.size + len(payload) > self._half:
            try:
                self._resize(min(2 * len(payload), MOST_BYTES))
            except OSError:
                return False
        elif not os.path.exists(self._path):
            with suppress(OSError):  # Its directory is not there again yet.
                self._resize(self._half - HEADER.size)
        self._put(payload)
        return True

    def mark(self, step: int, index: int, inputs: int, loss: int) -> None:
        """Leave the digests of a microbatch; each below 2**32."""
        assert self._map is not None, f"mark in {self._path} after close"
        entry = MARK.pack(step, index, inputs, loss, _check(step, index, inputs, loss))
        if (step, index) != self._marked:
            self._marked, self._marks = (step, index), self._marks + 1
        place = 2 * self._half + (self._marks % MARKS) * MARK.size
        self._map[place : place + MARK.size] = entry

    def unmark(self, step: int) -> None:
        """Take back the marks of a transaction."""
        assert self._map is not None, f"unmark in {self._path} after close"
        for place in range(2 * self._half, 2 * self._half + MARKS_BYTES, MARK.size):
            if MARK.unpack_from(self._map, place)[0] == step:
                self._map[place : place + MARK.size] = bytes(MARK.size)  # no check is 0

    def begin(self, place: int, begun: Begun | None) -> None:
        """Leave `begun` at `place` below BEGUNS, None for nothing. Bounds are a mark's."""
        assert self._map is not None, f"begin in {self._path} after close"
        start = 2 * self._half + MARKS_BYTES + place * BEGUN.size
        entry = bytes(BEGUN.size) if begun is None else BEGUN.pack(*begun, _begun_check(begun))
        self._map[start : start + BEGUN.size] = entry

    def close(self) -> None:
        """Unmap; the file stays."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _put(self, payload: bytes) -> None:
        assert self._map is not None, f"write to {self._path} after close"
        self._sequence += 1
        start = (self._sequence % 2) * self._half
        body = start + HEADER.size
        self._map[body : body + len(payload)] = payload
        header = HEADER.pack(self._sequence, len(payload), zlib.crc32(payload))
        self._map[start:body] = header
        self._last = payload

    def _resize(self, capacity: int) -> None:
        """A larger file takes the old one's place in one rename: a reader sees either, whole."""
        half = HEADER.size + max(capacity, LEAST_BYTES)
        new = f"{self._path}.{os.getpid()}.new"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Allocated now: a full file system is an OSError here and a SIGBUS in `write`.
            os.posix_fallocate(fd, 0, 2 * half + TAIL_BYTES)
            grown = mmap.mmap(fd, 2 * half + TAIL_BYTES)
        except OSError:
            os.unlink(new)
            raise
        finally:
            os.close(fd)
        if self._map is not None:
            grown[2 * half :] = self._map[2 * self._half :]
        self.close()
        self._map, self._half = grown, half
        if self._sequence:
            self._sequence -= 1  # The copy keeps the number of the payload that it repeats.
            self._put(self._last)
        os.replace(new, self._path)


def read(path: str) -> tuple[bytes, ...]:
    """The whole payloads in the file at `path`, oldest first; () if there is no such file."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > FILE_BYTES:
                return ()
            return parse(file.read())
    except OSError:
        return ()


def newest(path: str) -> bytes:
    """The newest whole payload in the file at `path`, b"" if there is none."""
    return next(reversed(read(path)), b"")


def read_marks(path: str) -> bytes:
    """The ring of marks in the file at `path`, b"" if there is none."""
    return _tail(path)[:MARKS_BYTES]


def read_begun(path: str, *, ended_by_us: bool) -> tuple[Begun, ...]:
    """The microbatches that the worker may have died of which left the file at `path`.

    Of a worker that was ended because its replica was, only those that it had given up.
    """
    found: list[Begun] = []
    for slot, step, first, last, given_up, check in BEGUN.iter_unpack(_tail(path)[MARKS_BYTES:]):
        begun = slot, step, first, last, given_up
        if check == _begun_check(begun) and (given_up or not ended_by_us):
            found.append(begun)
    return tuple(found)


def _tail(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < TAIL_BYTES:
                return b""
            file.seek(size - TAIL_BYTES)
            return file.read(TAIL_BYTES)
    except OSError:
        return b""


def parse_marks(ring: bytes) -> dict[tuple[int, int], tuple[int, int]]:
    """Digests of inputs and loss by transaction and microbatch, of whole marks. Never raises."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for start in range(0, len(ring) - MARK.size + 1, MARK.size):
        step, index, inputs, loss, check = MARK.unpack_from(ring, start)
        if check == _check(step, index, inputs, loss):
            found[step, index] = inputs, loss
    return found


def _check(*numbers: int) -> int:
    """Never that of memory which was never written."""
    return zlib.crc32(CHECKED.pack(*numbers)) or 1


def _begun_check(begun: Begun) -> int:
    """Never that of memory which was never written."""
    return zlib.crc32(BEGUN_CHECKED.pack(*begun)) or 1


def parse(content: bytes) -> tuple[bytes, ...]:
    """The valid payloads (0 to 2) of a file's content, ordered by sequence. Never raises."""
    half = (len(content) - TAIL_BYTES) // 2
    found = [_payload(content, start, half) for start in (0, half)]
    valid = sorted(entry for entry in found if entry is not None)
    return tuple(payload for _sequence, payload in valid)


def _payload(content: bytes, start: int, size: int) -> tuple[int, bytes] | None:
    if size < HEADER.size:
        return None
    sequence, length, checksum = HEADER.unpack_from(content, start)
    body = start + HEADER.size
    if not sequence or length > size - HEADER.size:
        return None
    payload = content[body : body + length]
    return (sequence, payload) if zlib.crc32(payload) == checksum else None
