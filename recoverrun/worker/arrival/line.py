"""A connection on which every wait has an end: bytes from memory and into memory, without copies.

The kernel keeps the time, so that one call moves many megabytes without the interpreter.
"""

import socket
import struct
import time
from contextlib import suppress

AT_ONCE = 8 << 20
"""Bytes of one call."""

SMALL_BYTES = 1 << 16
"""Less than this is gathered before it leaves: each call waits for Python's global lock after it,
which the script's thread may hold for milliseconds.
"""

SLOWEST_BYTES_PER_S = 1 << 20
"""Whoever moves less than this is as good as gone."""


class PeerClosed(ConnectionError):
    """The other side has closed the connection."""


class TimedSocket:
    """A connected stream socket. Methods raise TimeoutError, PeerClosed and other OSErrors."""

    def __init__(self, connection: socket.socket, stall_s: float) -> None:
        """A peer that does nothing for `stall_s` seconds has stalled."""
        self._socket = connection
        self._stall_s = stall_s
        self._gathered = bytearray()  # is sent before all else
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("@ll", int(stall_s), int(stall_s % 1 * 1_000_000) or int(stall_s < 1))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, memory: bytes | memoryview, *, more: bool = False) -> None:
        """Send all of it; it may leave later if there is `more` to follow at once."""
        small = len(memory) < SMALL_BYTES
        if small:
            self._gathered += memory
            if more and len(self._gathered) < SMALL_BYTES:
                return
        waiting, self._gathered = self._gathered, bytearray()
        self._send(memoryview(waiting), more or not small)
        if not small:
            self._send(memoryview(memory), more)

    def _send(self, view: memoryview, more: bool) -> None:
        at, began = 0, time.monotonic()
        flags = socket.MSG_NOSIGNAL | (socket.MSG_MORE if more else 0)
        while at < len(view):
            self._look_at(began, at, len(view))
            try:
                at += self._socket.send(view[at : at + AT_ONCE], flags)
            except BlockingIOError:
                raise _late(began, at, len(view), "then nothing") from None

    def fill(self, memory: memoryview) -> None:
        """Receive exactly as many bytes as `memory` has."""
        at, began = 0, time.monotonic()
        while at < len(memory):
            self._look_at(began, at, len(memory))
            part = memory[at : at + AT_ONCE]
            try:
                count = self._socket.recv_into(part, len(part), socket.MSG_WAITALL)
            except BlockingIOError:
                raise _late(began, at, len(memory), "then nothing") from None
            if not count:
                raise PeerClosed("the other side closed the connection")
            at += count

    def receive(self, count: int) -> bytes:
        """Receive `count` bytes, which must be few: they are allocated beforehand."""
        found = bytearray(count)
        self.fill(memoryview(found))
        return bytes(found)

    def hang_up(self) -> None:
        """End the connection, and what waits on it in whichever thread."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection, which ends even if a forked child holds it, too."""
        self.hang_up()
        self._socket.close()

    def _look_at(self, began: float, done: int, total: int) -> None:
        """Drops now and then are no progress."""
        limit_s = self._stall_s + total / SLOWEST_BYTES_PER_S
        if time.monotonic() > began + limit_s:
            raise _late(began, done, total, "which is too slow")


def _late(began: float, done: int, total: int, what: str) -> TimeoutError:
    took_s = time.monotonic() - began
    return TimeoutError(f"{done} of {total} bytes came through in {took_s:.1f} s, {what}")
