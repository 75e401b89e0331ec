"""The journals of this node, for a reader outside of the job who has its key: `recoverrun status`.

A launcher tells the run directory's journals and no other file. They are read in a thread, because
their disk may stall, and a reader that asks too often is left without an answer and asks again.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from recoverrun.launcher.network.blocking_calls import BlockingCalls
from recoverrun.launcher.network.connections import Connections, Place
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.launcher.output.run_folder import RunFolder
from rendezvous.protocol.journal_messages import JournalCall, JournalPiece
from rendezvous.protocol.messages import Message
from rendezvous.transport.station import Station

PIECE_BYTES = 1 << 18
JOURNAL = re.compile(r"events\.[A-Za-z0-9._-]{1,128}\.jsonl")
"""The name of a journal; nothing else is told, or taken."""

LAUNCHERS_MOST = 1024


class JournalDesk:
    """Answers of one launcher to readers."""

    def __init__(self, station: Station, folder: RunFolder, connections: Connections) -> None:
        self._folder = folder
        self._connections = connections
        self._calls: BlockingCalls[Envelope] = BlockingCalls(station)

    def hear(self, sender: str, message: Message) -> bool:
        """True if this is what a reader says: then it is being answered."""
        if not isinstance(message, JournalCall):
            return False
        folder, run_dir = self._folder.name, self._folder.made
        places = _some(self._connections.places.values())

        def answer() -> Envelope:
            piece = following(run_dir, dict(message.have)) if run_dir is not None else NOTHING
            name, start, data = piece
            told = JournalPiece(
                serial=message.serial,
                folder=folder,
                name=name,
                start=start,
                data=data,
                launchers=places,
            )
            return Envelope(sender, NOBODY, told)

        self._calls.ask(answer)
        return True

    def answer(self, ready: Collection[object]) -> None:
        """Send what has been read, if that is `ready`."""
        self._connections.send_all(self._calls.take(ready))

    def close(self) -> None:
        self._calls.close()


Piece = tuple[str, int, bytes]
"""The name of a journal, and what it holds from there on."""

NOTHING: Piece = ("", 0, b"")


def following(run_dir: Path, have: Mapping[str, int]) -> Piece:
    """The next piece of the first journal that holds more than `have`. A file that cannot be read
    is as one that holds nothing.
    """
    names: Sequence[str] = ()
    with suppress(OSError):
        names = sorted(name for name in os.listdir(run_dir) if JOURNAL.fullmatch(name))
    for name in names:
        start = have.get(name, 0)
        data = _read(run_dir / name, start) if start >= 0 else b""
        if data:
            return name, start, data
    return NOTHING


def _read(path: Path, start: int) -> bytes:
    """At most PIECE_BYTES of a regular file."""
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
