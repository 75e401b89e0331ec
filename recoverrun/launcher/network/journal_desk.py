"""The journals of this node, for a reader outside of the job who has its key: `recoverrun status`.

A launcher tells the run directory's journals and the stacks of ranks that stood still, and no other
file. They are read in a thread, because their disk may stall, and a reader that asks too often is
left without an answer and asks again. One that still asks as the launcher ends is told the rest.
"""

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from recoverrun.launcher.network.blocking_calls import BlockingCalls
from recoverrun.launcher.network.connections import Connections, Place
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.launcher.output.run_folder import RunFolder
from recoverrun.reports.hang_stacks import MOST_BYTES, hang_stacks
from rendezvous.protocol.journal_messages import JournalCall, JournalPiece
from rendezvous.protocol.messages import Message
from rendezvous.transport.station import Station

PIECE_BYTES = 1 << 18
JOURNAL = re.compile(r"events\.[A-Za-z0-9._-]{1,128}\.jsonl")
STACK = re.compile(r"hangs/\d{1,9}/rank\d{1,7}\.stack")
"""The names of a journal and of stacks; nothing else is told, or taken."""

LAUNCHERS_MOST = 1024

READERS_MOST = 16
READER_S = 30.0
"""A reader that has not asked for so long has left."""

LAST_PIECES = 64
"""At the end of a launcher a reader is told so much at most."""


class JournalDesk:
    """Answers of one launcher to readers."""

    def __init__(self, station: Station, folder: RunFolder, connections: Connections) -> None:
        self._folder = folder
        self._connections = connections
        self._calls: BlockingCalls[Envelope] = BlockingCalls(station)
        self._readers: dict[str, tuple[JournalCall, float]] = {}  # the last call of each, when

    def hear(self, sender: str, message: Message, now: float) -> bool:
        """True if this is what a reader says: then it is being answered."""
        if not isinstance(message, JournalCall):
            return False
        self._readers.pop(sender, None)
        self._readers[sender] = message, now
        if len(self._readers) > READERS_MOST:
            del self._readers[next(iter(self._readers))]
        tell, run_dir = self._teller(sender, message.serial), self._folder.made
        stacks_of = self._folder.name if message.stacks else None

        def answer() -> Envelope:
            have = dict(message.have)
            return tell(following(run_dir, have, stacks_of=stacks_of))

        self._calls.ask(answer)
        return True

    def _teller(self, reader: str, serial: int) -> Callable[["Piece"], Envelope]:
        """A function that makes an answer to this reader of a piece."""
        folder, places = self._folder.name, _some(self._connections.places.values())

        def tell(piece: Piece) -> Envelope:
            name, start, data = piece
            told = JournalPiece(
                serial=serial, folder=folder, name=name, start=start, data=data, launchers=places
            )
            return Envelope(reader, NOBODY, told)

        return tell

    def answer(self, ready: Collection[object]) -> None:
        """Send what has been read, if that is `ready`."""
        self._connections.send_all(self._calls.take(ready))

    def close(self, flush: Callable[[], bool], now: float) -> None:
        """Tell the end of the journal to those who still ask; `flush` waits until it is written."""
        self._calls.close()
        readers = [
            (reader, dict(call.have))
            for reader, (call, asked_at) in self._readers.items()
            if now < asked_at + READER_S
        ]
        if readers and flush():
            for reader, have in readers:
                tell = self._teller(reader, UNASKED)
                self._connections.send_all(map(tell, _rest(self._folder.made, have)))


Piece = tuple[str, int, bytes]
"""The name of a journal, and what it holds from there on."""

NOTHING: Piece = ("", 0, b"")

UNASKED = 0
"""The serial of what a reader is told as the launcher ends."""


def following(
    run_dir: Path | None, have: Mapping[str, int], *, stacks_of: str | None = None
) -> Piece:
    """The next piece of the first file that holds more than `have`: of a journal, else of stacks of
    the run `stacks_of`. A file that cannot be read is as one that holds nothing.
    """
    if run_dir is None:
        return NOTHING
    names: Sequence[str] = ()
    with suppress(OSError):
        names = sorted(name for name in os.listdir(run_dir) if JOURNAL.fullmatch(name))
    for name in names:
        start = have.get(name, 0)
        data = _read(run_dir / name, start) if start >= 0 else b""
        if data:
            return name, start, data
    for stack in hang_stacks(run_dir, run=stacks_of) if stacks_of is not None else ():
        name = f"hangs/{stack.hang}/rank{stack.rank}.stack"
        start = have.get(name, 0)
        data = _read(stack.path, start)[: MOST_BYTES - start] if 0 <= start < MOST_BYTES else b""
        if data:
            return name, start, data
    return NOTHING


def _rest(run_dir: Path | None, have: dict[str, int]) -> Iterator[Piece]:
    """Parts of journals beyond `have`, which grows."""
    for _ in range(LAST_PIECES):
        piece = name, start, data = following(run_dir, have)
        if not data:
            return
        have[name] = start + len(data)
        yield piece


def _read(path: Path, start: int) -> bytes:
    """Read at most PIECE_BYTES of a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, PIECE_BYTES, start) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def _some(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(sorted(set(places)))[:LAUNCHERS_MOST]
