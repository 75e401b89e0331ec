"""A host under attack, and the good peer that must not notice."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.network.addresses import open_uplink
from rendezvous.protocol import codec
from rendezvous.protocol.messages import Notice
from rendezvous.transport.keys import JobKey, new_text, parse
from rendezvous.transport.links import Dealer
from rendezvous.transport.station import Station

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0


_stations: list[Station] = []


def opened(key: JobKey | None = None) -> Station:
    """A station that `close_stations` closes: one that is left over holds up its process."""
    _stations.append(Station(key))
    return _stations[-1]


def close_stations() -> None:
    while _stations:
        _stations.pop().close()


class Peer:
    """Somebody who connects with a key, or without."""

    def __init__(self, station: Station, port: int, host: str = "127.0.0.1") -> None:
        self.station = station
        self.dealer: Dealer = open_uplink(station, [Endpoint(host=host, port=port)])

    def send(self, *frames: bytes) -> None:
        """Send as soon as there is a connection with room."""
        until = time.monotonic() + PATIENCE_S
        while not self.dealer.send(*frames):
            assert time.monotonic() < until, "nobody lets us in"
            self.station.wait(0.01)
            self.dealer.receive()

    def receive(self, timeout_s: float = PATIENCE_S) -> bytes:
        """The last frame of the next message; b"" if there is none."""
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            frames = self.dealer.receive()
            if frames is not None:
                return frames[-1]
            self.station.wait(min(left_s, 0.1))
        return b""

    def strangers(self, enough: int = 1, timeout_s: float = 5.0) -> int:
        """Failed handshakes, once there are enough of them."""
        until = time.monotonic() + timeout_s
        while self.dealer.strangers < enough and time.monotonic() < until:
            self.station.wait(0.05)
            self.dealer.receive()
        return self.dealer.strangers

    def is_cut_off(self, timeout_s: float = 5.0) -> bool:
        """True if the connection is ended from the other side."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            self.station.wait(0.02)
            self.dealer.receive()
            if not self.dealer.send(b""):
                return True
        return False


class GoodPeer:
    """Asks the host how it is, over and over, and remembers how long each answer took."""

    def __init__(self, key: JobKey | None, port: int) -> None:
        self._station = Station(key)
        self._peer = Peer(self._station, port)
        self._asking = threading.Event()
        self._lock = threading.Lock()
        self.trips_ms: list[float] = []
        try:
            self.ask()
        except AssertionError:
            self.close()
            raise

    def ask(self) -> dict[str, Any]:
        """The host's figures."""
        serial = os.urandom(4).hex()
        began = time.perf_counter()
        with self._lock:
            self._peer.send(codec.encode(Notice(rank=0, generation=1, event=serial, reason="")))
            while True:
                frame = self._peer.receive()
                assert frame, f"no answer in {PATIENCE_S} s"
                answer = codec.decode(frame)
                if isinstance(answer, Notice) and answer.event == serial:
                    break
        self.trips_ms.append((time.perf_counter() - began) * 1000)
        figures: dict[str, Any] = json.loads(answer.reason)
        return figures

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask all the time while the block runs."""
        self.trips_ms.clear()
        stop = threading.Event()

        def watch() -> None:
            while not stop.is_set():
                self.ask()
                stop.wait(0.01)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        self._station.close()


class Arena:
    """The host, its key and its good peer."""

    def __init__(self, directory: Path, *, keyed: bool = True) -> None:
        self.key_file = directory / "key"
        self.key_file.write_text(new_text())
        self.key = parse(self.key_file.read_bytes()) if keyed else None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.security.host", *([str(self.key_file)] if keyed else [])],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None, "started with a pipe"
        self.port = int(self._process.stdout.readline())
        self.pid = self._process.pid
        try:
            self.good = GoodPeer(self.key, self.port)
        except AssertionError:
            self._process.kill()
            self._process.wait()
            raise

    def peer(self) -> Peer:
        """Another member with the key."""
        return Peer(opened(self.key), self.port)

    def complained(self, words: str) -> bool:
        """True if the host says so in a line, sooner or later."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            if any(words in line for line in self.good.ask()["lines"]):
                return True
        return False

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    @contextmanager
    def attack(self, *, growth_mb: float = 64) -> Iterator[dict[str, Any]]:
        """Whatever happens inside, the good peer is served and the host's memory is bounded."""
        before = self.good.ask()
        with self.good.watching():
            yield before
        after = self.good.ask()
        assert after["rss_mb"] - before["rss_mb"] < growth_mb
        trips = sorted(self.good.trips_ms)
        # One in a hundred may meet a busy machine.
        assert trips[len(trips) * 99 // 100 - 1] < 100, f"slowest: {trips[-5:]} ms"

    def close(self) -> None:
        self.good.close()
        _, errors = self._process.communicate(timeout=PATIENCE_S)
        assert not errors and self._process.returncode == 0, errors.decode()


def closed_by_peer(connection: socket.socket, timeout_s: float = PATIENCE_S) -> bool:
    """True if the other side ends the connection; what it says before is read."""
    connection.settimeout(timeout_s)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
