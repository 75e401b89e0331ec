"""The calls to other launchers, and what is asked about one that does not answer."""

import socket
import time
from collections.abc import Iterator

import pytest

from recoverrun.config.given_options import Options
from recoverrun.config.run_config import parse_options
from recoverrun.launcher.network.connections import Connections
from rendezvous.protocol.formation_messages import Start
from rendezvous.transport.station import Station


@pytest.fixture
def station() -> Iterator[Station]:
    one = Station()
    yield one
    one.close()


def _start(port: int) -> Start:
    return Start(
        generation=1, node_rank=0, nnodes=2, first_rank=0, nproc=1, world_size=2,
        master_addr="h:1", nodes=("a", "b"), leader="a",
        peers=(("a", "127.0.0.1", 1, 1), ("b", "127.0.0.1", port, 1)),
    )  # fmt: skip


def test_a_launcher_that_stops_listening_after_its_connections_broke_is_soon_known_to_be_dead(
    station: Station,
) -> None:
    connections = Connections(station, parse_options(Options(command=("train.py",)), {}))
    listener = socket.create_server(("127.0.0.1", 0))  # accepts nobody, as one about to end
    began_at = time.monotonic()
    connections.learn(_start(listener.getsockname()[1]), "a")
    connections.call(["b"], began_at)
    while time.monotonic() < (connections.deadline() or 0.0):
        station.wait(0.01)
    assert connections.ask(time.monotonic()) == []  # nothing is proved yet

    listener.close()
    closed_at = time.monotonic()
    while not (ended := connections.ask(time.monotonic())):
        assert time.monotonic() < closed_at + 5
        station.wait(max(0.0, (connections.deadline() or 0.0) - time.monotonic()))

    assert ended == ["b"]
    assert time.monotonic() < closed_at + 0.3
    connections.close()
