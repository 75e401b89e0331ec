"""The launcher's own lines on standard error, which may lead to a file or a pipe that stalls.

Under a scheduler it often is a file on the very file system that the run directory is on. A thread
writes the lines, so that the loop says them and goes on.
"""

from contextlib import suppress
from typing import TextIO

from recoverrun.text import ascii_only, encodes, plural
from rendezvous.journal.spool import Spool

MOST_LINES = 1000
MOST_BYTES = 1 << 20
FLUSH_S = 10.0
"""How long the end waits for a stream that stalls."""


class Speaker:
    """Says lines in their order. For one thread, which waits in `flush` and `close` alone."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` is None where it was closed before we began: nothing is said."""
        self._stream = stream
        self._spool = Spool("speaker", self._print, most=MOST_LINES, most_bytes=MOST_BYTES)
        self._unsaid = 0

    def say(self, text: str) -> None:
        """Have a line printed."""
        if self._unsaid and self._spool.put(f"({plural(self._unsaid, 'line')} not shown)"):
            self._unsaid = 0
        if self._unsaid or not self._spool.put(text, len(text)):
            self._unsaid += 1

    def flush(self, within_s: float) -> bool:
        """Wait until all is printed, `within_s` at most. True if it is."""
        return self._spool.flush(within_s)

    def close(self) -> None:
        """Have all of it printed, as far as the stream takes it within FLUSH_S."""
        self._spool.close(FLUSH_S)

    def _print(self, text: str) -> None:
        if self._stream is None:
            return
        shown = text if encodes(self._stream.encoding) else ascii_only(text)
        with suppress(OSError, ValueError):  # That nobody reads any more must not end the job.
            # In one call: without a buffer, a line of a worker could come before its end.
            self._stream.write(f"{shown}\n")
            self._stream.flush()
