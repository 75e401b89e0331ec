"""The port of an exchange: who has no key of the job is not heard, and junk disturbs nobody."""

import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from recoverrun.launcher.node.process import Child, spawn
from rendezvous.bays import exchange_line
from rendezvous.protocol.exchange_messages import Describe, Described, Employ
from rendezvous.protocol.snapshot_messages import Exchanging
from rendezvous.transport.keys import JobKey
from rendezvous.transport.links import Dealer
from rendezvous.transport.station import Station

pytestmark = pytest.mark.rest

PATIENCE_S = 60.0
QUESTION = Describe(serial=7, attempt=0, step=5, world=2, first_rank=0, nproc=1)


@dataclass
class Running:
    """An exchange in a process of its own, which has no keeper."""

    key: bytes
    child: Child
    line: socket.socket
    port: int

    def asks(self, key: bytes, *frames: bytes, within_s: float = PATIENCE_S) -> tuple[bytes, ...]:
        """The answers to somebody with this key who says `frames` one after the other."""
        station = Station(JobKey(key) if key else None)
        dealer = station.connect_tcp(("127.0.0.1", self.port))
        try:
            return _answer(station, dealer, frames, time.monotonic() + within_s)
        finally:
            station.close()


def _answer(
    station: Station, dealer: Dealer, frames: tuple[bytes, ...], until: float
) -> tuple[bytes, ...]:
    left = list(frames)
    while time.monotonic() < until and not dealer.strangers:
        if left and dealer.send(left[0]):
            left.pop(0)
        answer = dealer.receive()
        if answer is not None:
            return answer
        station.wait(0.05)
    return ()


@pytest.fixture
def exchange(tmp_path: Path) -> Iterator[Running]:
    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(PATIENCE_S)
    command = [sys.executable, "-m", "recoverrun.exchange", str(theirs.fileno()), f"{tmp_path}/k"]
    child = spawn(command, os.environ, handed=(theirs.fileno(),))
    theirs.close()
    key = secrets.token_bytes(32)
    exchange_line.say(line, Employ(key=key, host="127.0.0.1", port=1, allowance="40%"))
    told = exchange_line.hear(line)
    assert isinstance(told, Exchanging)
    yield Running(key, child, line, told.port)
    line.close()
    if not select.select([child.pidfd], [], [], PATIENCE_S)[0]:
        child.signal(signal.SIGKILL)
    os.waitpid(child.pid, 0)
    child.close()


def test_who_has_the_key_is_answered_also_after_junk(exchange: Running) -> None:
    question = exchange_line.framed(QUESTION)

    for said in ((question,), (b"", b"junk", b"\x81\xa1k\xa4Stop", question)):
        [frame] = exchange.asks(exchange.key, *said)
        assert exchange_line.read(frame) == Described(serial=7, bays=())


@pytest.mark.parametrize("key", [b"", secrets.token_bytes(32)], ids=["none", "another"])
def test_who_has_no_key_of_the_job_is_not_heard(exchange: Running, key: bytes) -> None:
    question = exchange_line.framed(QUESTION)

    assert exchange.asks(key, question, within_s=10.0) == ()
    assert exchange.asks(exchange.key, question) != ()


def test_it_ends_with_its_launcher(exchange: Running) -> None:
    exchange.line.close()

    assert select.select([exchange.child.pidfd], [], [], PATIENCE_S)[0]
