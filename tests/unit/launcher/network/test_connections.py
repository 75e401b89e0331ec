"""The calls to other launchers, and what is asked about one that does not answer."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from recoverrun.config.given_options import Options
from recoverrun.config.option_values import Endpoint
from recoverrun.config.run_config import parse_options
from recoverrun.launcher.network.connections import Connections, located, refer
from recoverrun.launcher.network.frames import NOBODY
from rendezvous.protocol.formation_messages import Beat, Redirect, Start
from rendezvous.transport.station import Station

BEAT = Beat(node="here", incarnation="one")


@pytest.fixture
def station() -> Iterator[Station]:
    one = Station()
    yield one
    one.close()


def _start(port: int, name: str = "b") -> Start:
    return Start(
        generation=1, node_rank=0, nnodes=2, first_rank=0, nproc=1, world_size=2,
        master_addr="h:1", nodes=("a", "b"), leader="a",
        peers=(("a", "127.0.0.1", 1, 1), (name, "127.0.0.1", port, 1)),
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


def test_who_was_started_again_at_the_place_of_another_is_heard_and_hears(
    station: Station,
) -> None:
    """Two calls of one launcher to one place would have one name, and only the first is heard."""
    connections = Connections(station, parse_options(Options(command=("train.py",)), {}))
    newcomer = Station()
    hub = newcomer.listen_tcp("127.0.0.1", 0)
    connections.learn(_start(hub.port), "a")
    connections.call(["b"], time.monotonic())  # who was there before, as far as is known
    _until(lambda: connections.send("b", NOBODY, BEAT), connections, station, newcomer)
    _until(lambda: hub.receive() is not None, connections, station, newcomer)

    connections.learn(_start(hub.port, name="c"), "a")
    connections.call(["c"], time.monotonic())
    _until(lambda: connections.send("c", NOBODY, BEAT), connections, station, newcomer)
    _until(lambda: hub.receive() is not None, connections, station, newcomer)

    connections.close()
    newcomer.close()


def test_who_asks_for_a_place_is_told_nothing_by_a_launcher_that_is_about_to_coordinate(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks again soon. A refusal would end it for good."""
    connections = Connections(station, parse_options(Options(command=("train.py",)), {}))
    connections.learn(_start(29500), "a")
    sent: list[object] = []
    monkeypatch.setattr(connections, "send", lambda *told: sent.append(told))

    refer(connections, "asker", "a")
    refer(connections, "asker", "b")

    assert sent == [("asker", NOBODY, Redirect(host="127.0.0.1", port=29500))]


@pytest.mark.parametrize("taken", [False, True])
def test_a_launcher_that_was_left_out_listens_at_the_endpoint_again_if_nobody_does(
    station: Station, taken: bool
) -> None:
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    if not taken:
        held.close()
    place = Endpoint(host="127.0.0.1", port=1)  # another launcher's, which is asked for a place
    config = replace(
        parse_options(Options(command=("train.py",)), {}),
        endpoints=(place,),
        met_at=(Endpoint(host="127.0.0.1", port=port),),
        had_endpoint=True,
        may_host=False,
    )
    connections = Connections(station, config)
    connections.open(0.0)
    own = connections.port
    assert not connections.at_endpoint

    connections.learn(_start(1), "a")

    assert (connections.at_endpoint, connections.hosts) == (not taken, False)
    assert connections.port == own != port
    socket.create_connection(("127.0.0.1", port)).close()
    connections.close()
    held.close()


def _until(
    over: Callable[[], bool], connections: Connections, station: Station, other: Station
) -> None:
    """Turn the loops of two launchers."""
    until = time.monotonic() + 5
    while not over():
        assert time.monotonic() < until
        for _ in connections.read(station.wait(0.01), time.monotonic()):
            pass
        other.wait(0.01)


def test_who_took_over_is_found_where_it_was_before_it_led(station: Station) -> None:
    """A leader does not know the address by which others reach it, and forms the job with none."""
    connections = Connections(station, parse_options(Options(command=("train.py",)), {}))
    connections.learn(_start(29500), "a")
    again = replace(_start(29500), leader="b", peers=(("a", "10.0.0.1", 1, 1), ("b", "", 29500, 1)))

    connections.learn(again, "a")

    assert located(again, connections.places).peers[1] == ("b", "127.0.0.1", 29500, 1)
    assert located(again, connections.places).peers[0] == again.peers[0]
    connections.close()
