"""The entrance for newcomers: a socket that listens, and a token that only one of them was told.

Whoever connects shows the token first. Several may stand at the door at once, so that one who says
nothing keeps nobody out; each has a few seconds.
"""

import hmac
import secrets
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

TOKEN_BYTES = 16

SILENT_S = 5.0
"""So long may somebody stand at the door without having shown the token."""

MOST_AT_THE_DOOR = 16


@dataclass(slots=True, eq=False)
class _Unverified:
    connection: socket.socket
    until: float
    shown: bytearray = field(default_factory=bytearray)


class TokenListener:
    """Listens on `host` at a port that the system chooses."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=MOST_AT_THE_DOOR)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._closed = False
        self._strangers: list[_Unverified] = []  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def next(self) -> socket.socket | None:
        """Wait for the next one with the token, and return its connection; None once closed.

        Raises OSError if nobody can be let in any more.
        """
        while self._selector.get_map() is not None:  # it is closed at the end
            found: socket.socket | None = None
            for key, _ in self._selector.select(self._patience_s()):
                if key.data is None:
                    self._welcome()
                elif self._has_token(key.data):
                    if found is not None:
                        found.close()  # it has come again meanwhile
                    found = key.data.connection
            if self._closed:
                self._end(found)
                return None
            if found is not None:
                return found
        return None

    def close(self) -> None:
        """Let nobody in any more; `next`, in whichever thread it waits, returns None."""
        self._closed = True
        with suppress(OSError):  # closed already, by the thread that waited
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the selector

    def _patience_s(self) -> float | None:
        """The time until the next stranger has to go; those whose time is over go now."""
        now = time.monotonic()
        while self._strangers and self._strangers[0].until <= now:
            self._send_away(self._strangers[0])
        return self._strangers[0].until - now if self._strangers else None

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # gone before it was let in
        except OSError:
            if not self._closed:
                self._end(None)
                raise
            return
        if len(self._strangers) == MOST_AT_THE_DOOR:
            self._send_away(self._strangers[0])
        connection.setblocking(False)
        stranger = _Unverified(connection, time.monotonic() + SILENT_S)
        self._strangers.append(stranger)
        self._selector.register(connection, selectors.EVENT_READ, stranger)

    def _has_token(self, stranger: _Unverified) -> bool:
        """True if the stranger has shown the token: it is none any more."""
        if stranger not in self._strangers:
            return False  # sent away a moment ago
        try:
            said = stranger.connection.recv(TOKEN_BYTES - len(stranger.shown))
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        stranger.shown += said
        if said and len(stranger.shown) < TOKEN_BYTES:
            return False
        if not hmac.compare_digest(bytes(stranger.shown), self.token):
            self._send_away(stranger)
            return False
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.connection)
        return True

    def _send_away(self, stranger: _Unverified) -> None:
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.connection)
        with suppress(OSError):  # gone already
            stranger.connection.shutdown(socket.SHUT_RDWR)
        stranger.connection.close()

    def _end(self, found: socket.socket | None) -> None:
        for stranger in tuple(self._strangers):
            self._send_away(stranger)
        if found is not None:
            found.close()
        self._selector.close()
        self._listener.close()
