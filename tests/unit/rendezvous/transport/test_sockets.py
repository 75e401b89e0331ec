"""ZeroMQ's sockets, as far as no launcher is needed to see what they do."""

import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import zmq

from rendezvous.transport import links, listener_connections
from rendezvous.transport.sockets import END_S, TCP_THIN_LINEAR_TIMEOUTS, end, resend_soon
from rendezvous.transport.station import Station


def test_a_context_without_sockets_ends_at_once() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.socket(zmq.PAIR).close(linger=0)

    began_at = time.monotonic()

    assert end(context, 0)
    assert time.monotonic() - began_at < END_S
    assert context.closed


def test_nobody_waits_for_ever_for_a_context_that_does_not_end() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stuck = context.socket(zmq.PAIR)

    assert not end(context, 100)

    (left,) = [one for one in threading.enumerate() if one.name == "recoverrun-end"]
    stuck.close(linger=0)
    left.join(10.0)
    assert not left.is_alive()


def test_a_context_that_does_not_end_keeps_no_process() -> None:
    program = """
        import zmq
        from rendezvous.transport.sockets import end
        context = zmq.Context()
        stuck = context.socket(zmq.PAIR)
        stuck.linger = -1
        assert not end(context, 0)
        print("on")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]

    told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)

    assert (told.stdout, told.stderr) == ("on\n", "")


def _sends_again_soon(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS))


def test_a_connection_is_told_to_send_again_soon_and_no_other_descriptor_minds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as connection:
            assert not _sends_again_soon(connection)

            resend_soon(connection.fileno())

            assert _sends_again_soon(connection)
        resend_soon(connection.fileno())  # -1: it is closed
    with socket.socket(socket.AF_UNIX) as other:
        resend_soon(other.fileno())


def test_both_ends_of_a_call_send_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    for module, whose in ((links, "listener"), (listener_connections, "caller")):
        monkeypatch.setattr(module, "resend_soon", lambda fd, whose=whose: told.append(whose))
    here, there = Station(), Station()
    hub = there.listen_tcp("127.0.0.1", 0)
    dealer = here.connect_tcp(("127.0.0.1", hub.port))
    until = time.monotonic() + 10.0

    while len(told) < 2 and time.monotonic() < until:
        if dealer in here.wait(0.05):
            dealer.receive()
        there.wait(0.0)

    here.close()
    there.close()
    assert {*told} == {"caller", "listener"}
