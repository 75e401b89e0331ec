"""The call to the endpoint of a job that misses a node: who is told, and who is left alone."""

import time
from collections.abc import Callable, Iterator

import pytest

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.network.endpoint_call import PAUSE_MOST_S, ROUND_S, EndpointCall
from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Running
from rendezvous.transport.keys import new_text, parse
from rendezvous.transport.links import Hub, Incoming
from rendezvous.transport.station import Station
from tests.e2e.launching import free_port

WORDS = Running(run_id="job", nnodes=2, listen=7, script="train.py", arguments="digest")
WITHIN_S = 20.0


class Pair:
    """A station that calls, and one that may listen."""

    def __init__(self) -> None:
        key = parse(new_text().encode())
        self.caller, self.listener = Station(key), Station(key)
        self.port = free_port()
        endpoint = Endpoint(host="127.0.0.1", port=self.port)
        self.call = EndpointCall(self.caller, [endpoint], lambda: WORDS)

    def listen(self, station: Station | None = None) -> Hub:
        return (station or self.listener).listen_tcp("127.0.0.1", self.port)

    def turn_until(self, over: Callable[[], bool], *others: Station, misses: bool = True) -> None:
        """Both loops turn."""
        until = time.monotonic() + WITHIN_S
        while not over():
            now = time.monotonic()
            assert now < until, "it never happened"
            self.call.read(self.caller.wait(0.01))
            self.call.tick(now, misses=misses)
            for station in (self.listener, *others):
                station.wait(0.01)

    def heard(self, hub: Hub) -> Incoming:
        heard: list[Incoming] = []

        def over() -> bool:
            heard.extend(filter(None, [hub.receive()]))
            return bool(heard)

        self.turn_until(over)
        return heard[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one = Pair()
    yield one
    one.call.close()
    one.caller.close()
    one.listener.close()


def test_who_listens_at_the_endpoint_is_told_where_the_job_is_joined(pair: Pair) -> None:
    incoming = pair.heard(pair.listen())

    assert codec.decode(incoming.frames[-1]) == WORDS
    assert incoming.address == "127.0.0.1"
    assert incoming.sender.decode() != pair.caller.incarnation  # it may be called already


def test_who_begins_to_listen_later_is_told_then(pair: Pair) -> None:
    pair.call.tick(time.monotonic(), misses=True)
    pair.call.read(pair.caller.wait(WITHIN_S))  # the call is made

    assert codec.decode(pair.heard(pair.listen()).frames[-1]) == WORDS


def test_whoever_has_another_key_is_told_nothing(pair: Pair) -> None:
    stranger = Station(parse(new_text().encode()))
    hub = pair.listen(stranger)
    said: list[str] = []

    def refused() -> bool:
        said.extend(stranger.log_lines(time.monotonic()))
        return bool(said)

    pair.turn_until(refused, stranger)
    assert hub.receive() is None
    stranger.close()


def test_nobody_is_called_while_nobody_is_missing(pair: Pair) -> None:
    pair.call.tick(1.0, misses=False)

    assert pair.call.deadline() is None


def test_rounds_that_find_nobody_come_less_and_less_often(pair: Pair) -> None:
    now, waits = 0.0, []
    for turn in range(12):
        pair.call.tick(now, misses=True)
        due = pair.call.deadline()
        assert due is not None
        waits.append(due - now)
        if turn % 2 == 0:  # a round: the lookup has ended
            pair.call.read(pair.caller.wait(WITHIN_S))
        now = due

    assert waits[::2] == [ROUND_S] * 6
    assert waits[1::2] == [1.0, 2.0, 4.0, PAUSE_MOST_S, PAUSE_MOST_S, PAUSE_MOST_S]
