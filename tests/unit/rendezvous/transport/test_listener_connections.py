"""Strangers at a launcher's door: a flood costs others nothing, and holds up nobody."""

import itertools
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from rendezvous.transport import listener_connections, station
from rendezvous.transport.listener_connections import EVENTS_AT_ONCE, ListenerConnections
from rendezvous.transport.station import Station

PATIENCE_S = 60.0
MOST = 8


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Station]:
    """One that lets few strangers in, and has patience with them."""
    monkeypatch.setattr(listener_connections, "STRANGERS", MOST)
    monkeypatch.setattr(station, "ANSWER_MS", int(PATIENCE_S * 2000))
    opened = Station()
    yield opened
    opened.close()


def _stands(connection: socket.socket) -> bool:
    """True if the other end has not hung up, after all that it has said."""
    try:
        while connection.recv(1000):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def test_a_flood_from_one_host_costs_that_host_and_nobody_else(listener: Station) -> None:
    hub = listener.listen_tcp("127.0.0.1", 0)
    with ExitStack() as stack:

        def call(host: str) -> socket.socket:
            place = ("127.0.0.1", hub.port)
            connection = stack.enter_context(
                socket.create_connection(place, PATIENCE_S, source_address=(host, 0))
            )
            connection.setblocking(False)
            return connection

        def wait_for(many: int) -> None:
            until = time.monotonic() + PATIENCE_S
            while sum(map(_stands, flood)) != many:
                assert time.monotonic() < until, "too many strangers are served, or too few"
                listener.wait(0.05)

        flood = [call("127.0.0.2") for _ in range(5 * MOST)]
        wait_for(MOST)
        others = []
        for left in (7, 6, 5, 4):
            others.append(call("127.0.0.3"))
            wait_for(left)

        others.append(call("127.0.0.3"))  # it would have more than the other host
        until = time.monotonic() + PATIENCE_S
        while _stands(others[-1]):
            assert time.monotonic() < until, "a host may have more than others"
            listener.wait(0.05)
        assert all(map(_stands, others[:-1]))
        assert sum(map(_stands, flood)) == 4


def test_no_flood_keeps_a_launcher_from_its_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = struct.pack("=HI", zmq.EVENT_HANDSHAKE_FAILED_AUTH, 0)
    monkeypatch.setattr(listener_connections, "drain", lambda _: itertools.repeat((failed,)))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.ROUTER) as router:
        door = ListenerConnections(context, router)

        assert door.count() == (EVENTS_AT_ONCE, 0)

        router.disable_monitor()
        door.socket.close(linger=0)
    context.term()


def test_where_hardly_any_descriptors_may_be_opened_callers_are_let_in_all_the_same(
    monkeypatch: pytest.MonkeyPatch, listener: Station
) -> None:
    monkeypatch.setattr(listener_connections.resource, "getrlimit", lambda _: (64, 64))
    hub, caller = listener.listen_tcp("127.0.0.1", 0), Station()
    dealer = caller.connect_tcp(("127.0.0.1", hub.port))
    until = time.monotonic() + PATIENCE_S

    heard = None
    while heard is None:
        assert time.monotonic() < until, "nobody is let in"
        dealer.send(b"here")
        caller.wait(0.05)
        listener.wait(0.05)
        dealer.receive()
        heard = hub.receive()

    caller.close()
    assert heard.frames == (b"here",)
