"""Donors of state on this machine: real ones, and some that say what they are told to."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import torch

from recoverrun.worker.arrival.offer import Offer
from recoverrun.worker.arrival.state_wire import MAGIC, Address
from recoverrun.worker.arrival.transfer import LivePeer

HOST = "127.0.0.1"
STALL_S = 5.0
SHORT_S = 1.0


def offer(tensors: list[torch.Tensor], **told: Any) -> Offer:
    options: dict[str, Any] = {"attempt": 0, "step": 7, "stall_s": STALL_S, **told}
    return Offer(HOST, options.pop("manifest", {}), tensors, **options)


def come(given: Offer, stall_s: float = STALL_S) -> LivePeer:
    return LivePeer(given.address, stall_s=stall_s)


@contextmanager
def donor(*said: bytes, then: str = "close") -> Iterator[Address]:
    """Whoever connects is told `said`, whatever it asks, and then nothing more."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for one in said:
                    connection.sendall(one)
                if then == "close":
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(100):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(HOST, listener.getsockname()[1], bytes(16))
        thread.join()


def head(body: Any, magic: bytes = MAGIC, size: int | None = None) -> bytes:
    packed = body if isinstance(body, bytes) else msgpack.packb(body)
    return struct.pack("<4sQ", magic, len(packed) if size is None else size) + packed


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        threading.Event().wait(0.01)
