"""The sockets of a fleet's doctor: nodes meet where the job would, under the job's key."""

import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

from recoverrun.config.run_config import RunConfig
from recoverrun.doctor.fleet_gathering import WAIT_S, Gathering, Place, Verdict, answered, standing
from recoverrun.doctor.node_facts import NodeFacts
from recoverrun.launcher.network.addresses import TakenError, open_hub, open_uplink
from recoverrun.launcher.network.key_lookup import Keyring
from rendezvous.transport.links import Dealer, Hub
from rendezvous.transport.station import Station

SAY_S = 0.5
AGAIN_S = 0.05
"""After so long a word is said again that found no connection."""

CALL_S = 2.0
TOLD_S = 20.0
"""How long the first node stays for the others to read the table."""

CALLS_AT_ONCE = 64
BATCH = 1000


def meet(config: RunConfig, keyring: Keyring, facts: NodeFacts) -> Verdict | None:
    """The table of all nodes, or None if nobody gathers one. Raises RecoverrunError."""
    station = Station(keyring.key)
    try:
        try:
            hub = open_hub(station, config)
        except TakenError:
            hub = None
        with _reachable() as port:
            if hub is not None:
                return _gather(station, hub, config, facts, port)
            return _tell(station, open_uplink(station, config.endpoints), config, facts, port)
    finally:
        station.close()


@contextmanager
def _reachable() -> Iterator[int]:
    """A free port at which this node can be called. The kernel takes the calls."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024) as server:
        yield int(server.getsockname()[1])


def _gather(
    station: Station, hub: Hub, config: RunConfig, facts: NodeFacts, port: int
) -> Verdict | None:
    """The first node's part: hear all, call all, tell all."""
    assert config.endpoint is not None, "nodes meet at an endpoint"
    own, book = station.incarnation, Gathering(config.nnodes, time.monotonic())
    book.add_first(own, facts, (config.local_addr or config.endpoint.host, port))
    called, until = False, float("inf")
    while not book.over and time.monotonic() < until:
        station.wait(SAY_S)
        for _ in range(BATCH):
            incoming = hub.receive()
            if incoming is None:
                break
            with suppress(ValueError, RecursionError):  # What a stranger says: no answer.
                answer = book.hear(
                    incoming.sender.decode("ascii"),
                    incoming.address,
                    incoming.frames[-1] if incoming.frames else b"",
                    time.time(),
                    time.monotonic(),
                )
                hub.send(incoming.sender, own.encode(), answer)
        book.tick(time.monotonic())
        peers, verdict = answered(book.answer())
        if peers is not None and not called:
            called = True
            book.take_calls(own, _calls(peers, own))
        if verdict is not None and until == float("inf"):
            until = time.monotonic() + TOLD_S
    return book.verdict


def _tell(
    station: Station, dealer: Dealer, config: RunConfig, facts: NodeFacts, port: int
) -> Verdict | None:
    """Any other node's part: say where we stand until there is a table."""
    calls: dict[str, str] | None = None
    until = time.monotonic() + WAIT_S
    say_at = 0.0
    while (now := time.monotonic()) < until:
        if now >= say_at:
            said = dealer.send(
                standing(replace(facts, wall_s=time.time()), config.local_addr, port, calls)
            )
            say_at = now + (SAY_S if said else AGAIN_S)
        station.wait(max(0.0, say_at - time.monotonic()))
        for _ in range(BATCH):
            frames = dealer.receive()
            if frames is None:
                break
            with suppress(ValueError, RecursionError):  # Whoever answers may be anybody.
                peers, verdict = answered(frames[-1])
                until = time.monotonic() + 2 * WAIT_S
                if verdict is not None:
                    return verdict
                if peers is not None and calls is None:
                    calls, say_at = _calls(peers, station.incarnation), 0.0
    return None


def _calls(peers: Mapping[str, Place], own: str) -> dict[str, str]:
    """Call all others at once: why each was not reached, or ""."""
    others = {name: place for name, place in peers.items() if name != own}
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        return dict(zip(others, pool.map(_call, others.values()), strict=True))


def _call(place: Place) -> str:
    try:
        with socket.create_connection(place, CALL_S):
            return ""
    except TimeoutError:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return (error.strerror or str(error)).lower()
