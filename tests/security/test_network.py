"""Rows 1-14 and 31: what comes to the port, with and without the key."""

import os
import select
import signal
import socket
import ssl
import time
from collections.abc import Iterator

import pytest
import zmq

from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Beat
from rendezvous.transport import admission, listener_connections, sockets
from rendezvous.transport.keys import JobKey, new_text, parse
from rendezvous.transport.port_probe import Probe
from tests.security.arena import Arena, Peer, close_stations, closed_by_peer, opened
from tests.security.host import FDS, join_of

FLOOD_S = 15.0
"""How long a flood goes on that nobody cuts off."""

pytestmark = pytest.mark.e2e

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
CURVE, NULL = (GREETING + name.ljust(20, b"\0") + bytes(32) for name in (b"CURVE", b"NULL"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    arena = Arena(tmp_path_factory.mktemp("arena"))
    yield arena
    arena.close()


@pytest.fixture
def arena(host: Arena) -> Iterator[Arena]:
    yield host
    close_stations()


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(os.urandom(100_000), id="row-1-random"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="row-2-http"),
        pytest.param(_client_hello(), id="row-2-tls"),
        pytest.param(NULL, id="row-3-null-mechanism"),
        pytest.param(CURVE + b"\x06" + (1 << 62).to_bytes(8, "big"), id="row-7-2**62"),
    ],
)
def test_bytes_without_a_key_end_in_a_closed_connection(arena: Arena, data: bytes) -> None:
    with arena.attack(growth_mb=8) as before, arena.raw() as connection:
        with pytest.MonkeyPatch.context():
            try:
                connection.sendall(data)
            except ConnectionError:
                pass  # It was faster than we.

        assert closed_by_peer(connection)
    after = arena.good.ask()
    # Nobody but the good peer was heard.
    assert after["heard"] - before["heard"] == len(arena.good.trips_ms)


def test_row_8_a_command_of_a_gigabyte_before_the_handshake(arena: Arena) -> None:
    with arena.attack(growth_mb=8), arena.raw() as connection:
        connection.sendall(CURVE + b"\x06" + (1 << 30).to_bytes(8, "big"))
        with pytest.raises(ConnectionError):
            for _ in range(200):
                connection.sendall(bytes(1 << 20))


@pytest.mark.parametrize(
    "key", [pytest.param(parse(new_text().encode()), id="row-4-other-key"),
            pytest.param(None, id="row-3-no-key")]
)  # fmt: skip
def test_a_peer_with_another_key_is_never_heard(arena: Arena, key: JobKey | None) -> None:
    with arena.attack(growth_mb=8) as before:
        peer = Peer(opened(key), arena.port)
        assert peer.strangers() >= 1
        assert not peer.dealer.send(b"hello")
        assert arena.good.ask()["heard"] - before["heard"] == len(arena.good.trips_ms)


def test_who_hangs_up_without_a_word_is_not_told_of(arena: Arena) -> None:
    host = opened(arena.key)
    hub = host.listen_tcp("127.0.0.1", 0)
    for _ in range(3):  # as a launcher does that asks whether this port is still served
        probe = Probe("127.0.0.1", hub.port)
        select.select([], [probe.fd], [], 5)
        probe.close()
    stranger = Peer(opened(parse(new_text().encode())), hub.port)

    lines: list[str] = []
    until = time.monotonic() + 5
    while not lines and time.monotonic() < until:
        stranger.station.wait(0.01)
        stranger.dealer.receive()
        host.wait(0.05)
        lines = host.log_lines(time.monotonic())

    assert lines == ["a connection was closed: it did not speak our key"]


def _impostor(arena: Arena, routing_id: bytes, frame: bytes) -> bool:
    """Shake hands as one with the key, with a name at will; whether that ends the connection."""
    assert arena.key is not None, "the arena has a key"
    socket = zmq.Context.instance().socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    for option, value in (
        (zmq.LINGER, 0), (zmq.IDENTITY, routing_id), (zmq.CURVE_PUBLICKEY, public),
        (zmq.CURVE_SECRETKEY, secret), (zmq.CURVE_SERVERKEY, sockets.listener_public(arena.key)),
    ):  # fmt: skip
        socket.setsockopt(option, value)
    ends = sockets.monitor(zmq.Context.instance(), socket, zmq.EVENT_DISCONNECTED)
    socket.connect(f"tcp://127.0.0.1:{arena.port}")
    socket.send(frame)
    ended = bool(ends.poll(5000))
    socket.disable_monitor()
    socket.close()
    ends.close()
    return ended


def test_row_5_a_public_key_without_the_proof_is_disconnected(arena: Arena) -> None:
    assert arena.key is not None
    somebody = opened(arena.key).incarnation.encode()
    names = [b"x", somebody, somebody + b"." + b"0" * 32, arena.key.routing_id(os.urandom(32))]
    with arena.attack() as before:
        frame = codec.encode(Beat(node="n", incarnation="i"))
        assert all(_impostor(arena, name, frame) for name in names)
    after = arena.good.ask()
    assert after["heard"] - before["heard"] == len(arena.good.trips_ms)
    assert arena.complained("its key does not prove")


def test_row_6_a_revoked_launcher_is_refused_until_it_is_pardoned(arena: Arena) -> None:
    key = arena.key
    host = opened(key)
    hub = host.listen_tcp("127.0.0.1", 0)
    evicted, other = (Peer(opened(key), hub.port) for _ in range(2))

    def heard(within_s: float) -> set[bytes]:
        until, senders = time.monotonic() + within_s, set()
        while time.monotonic() < until and len(senders) < 2:
            for peer in (evicted, other):
                peer.station.wait(0.01)
                peer.dealer.receive()
                peer.dealer.send(b"hello")
            host.wait(0.01)
            while (incoming := hub.receive()) is not None:
                senders.add(incoming.sender)
        return senders

    evicted_name, other_name = (p.station.incarnation.encode() for p in (evicted, other))
    assert heard(5) == {evicted_name, other_name}

    hub.revoke(evicted_name)
    while heard(0.3) != {other_name}:
        pass
    assert heard(0.5) == {other_name}

    hub.pardon(evicted_name)
    assert heard(10) == {evicted_name, other_name}


@pytest.mark.rest
def test_row_9_half_open_handshakes_are_reaped(arena: Arena) -> None:
    with arena.attack(growth_mb=16) as before:
        half_open = [arena.raw() for _ in range(200)]
        for connection in half_open:
            connection.sendall(GREETING)

        assert all(closed_by_peer(connection) for connection in half_open)
        for connection in half_open:
            connection.close()
    assert arena.good.ask()["fds"] <= before["fds"]


def test_row_10_more_connections_than_descriptors(arena: Arena) -> None:
    with arena.attack(growth_mb=16):
        many = []
        for _ in range(2 * FDS):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", arena.port))
            many.append(connection)
        most, until = FDS // 2 + listener_connections.RESERVED_FDS, time.monotonic() + FLOOD_S
        while arena.good.ask()["fds"] > most:
            assert time.monotonic() < until, "strangers have more than half of the descriptors"
        for connection in many:
            connection.close()


def test_row_11_a_frame_beyond_the_limit_ends_the_connection(arena: Arena) -> None:
    peer = arena.peer()
    with arena.attack(growth_mb=32):
        peer.send(bytes(codec.FRAME_BYTES + 1))

        assert peer.is_cut_off()


def test_row_12_a_message_of_many_parts_ends_the_connection(arena: Arena) -> None:
    peer = arena.peer()
    with arena.attack():
        peer.send(*[b""] * 20_000)

        assert peer.is_cut_off()
    assert arena.complained("more than 8 parts")


def test_row_13_a_flood_is_cut_off(arena: Arena) -> None:
    peer = arena.peer()
    frame = codec.encode(Beat(node="n" * 1000, incarnation="i"))
    peer.send(frame)
    sent, began = 0, time.monotonic()
    with arena.attack() as before:
        while True:
            said = arena.good.ask()
            if any("more than any launcher" in line for line in said["lines"]):
                break
            took = time.monotonic() - began
            if took > FLOOD_S:
                allowed = admission.MESSAGES_AT_ONCE + took * admission.MESSAGES_PER_S
                heard = said["heard"] - before["heard"]  # others still lie in buffers
                assert heard <= allowed, f"{heard} messages and still welcome"
                pytest.skip("this machine is too busy to send more than a launcher may")
            sent += sum(peer.dealer.send(frame) for _ in range(2000))

        assert peer.is_cut_off()
    assert sent >= admission.MESSAGES_AT_ONCE


def test_row_14_a_reader_that_never_reads_blocks_nobody(arena: Arena) -> None:
    child = os.fork()
    if child == 0:
        try:
            # Says who it is, then is stopped with full buffers.
            peer = arena.peer()
            peer.send(codec.encode(join_of(peer.station.incarnation, "sleepy")))
            assert peer.receive(1.0) == b""
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    try:
        os.waitpid(child, os.WUNTRACED)
        with arena.attack():
            time.sleep(1.0)  # As long as the good peer is to be watched.
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_row_14_sending_to_a_full_queue_is_a_value(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "QUEUE", 10)
    host, reader = opened(), opened()
    hub = host.listen_tcp("127.0.0.1", 0)
    dealer = reader.connect_tcp(("127.0.0.1", hub.port))
    while not dealer.send(b"here"):
        reader.wait(0.01)
        dealer.receive()
    while hub.receive() is None:
        host.wait(0.1)

    name = reader.incarnation.encode()
    sent = 0
    began = time.monotonic()
    while hub.send(name, bytes(1 << 20)):
        sent += 1

    assert 10 <= sent < 2000 and time.monotonic() - began < 10


def test_row_31_a_routing_id_that_is_taken_stays_with_its_owner(arena: Arena) -> None:
    first = arena.peer()
    caller = first.station._caller
    join = codec.encode(join_of(first.station.incarnation, "clone"))
    with arena.attack():
        first.send(join)
        station = opened(arena.key)
        station._caller = caller  # A copy of the process, with its key.
        clone = Peer(station, arena.port)
        clone.send(join)

        assert clone.receive(0.5) == b""
        first.send(join)


def test_the_key_and_its_children_are_not_on_the_wire(arena: Arena) -> None:
    text = new_text().encode()
    key = parse(text)
    host, guest = opened(key), opened(key)
    hub = host.listen_tcp("127.0.0.1", 0)
    with socket.socket() as tap:
        tap.bind(("127.0.0.1", 0))
        tap.listen()
        dealer = guest.connect_tcp(("127.0.0.1", tap.getsockname()[1]))
        near, _ = tap.accept()
        far = socket.create_connection(("127.0.0.1", hub.port))
        overheard = b""
        near.setblocking(False)
        far.setblocking(False)
        said = b"a secret of the training run"
        incoming = None
        until = time.monotonic() + 10
        while incoming is None and time.monotonic() < until:
            for source, sink in ((near, far), (far, near)):
                try:
                    data = source.recv(65536)
                except BlockingIOError:
                    continue
                overheard += data
                sink.sendall(data)
            guest.wait(0.001)
            dealer.receive()
            dealer.send(said)
            host.wait(0.001)
            incoming = hub.receive()
        near.close()
        far.close()
    assert incoming is not None and incoming.frames == (said,)

    listener = zmq.utils.z85.decode(sockets.listener_public(key))
    for secret in (text.strip(), key.root, key.listener_secret(), listener, said):
        assert secret not in overheard
