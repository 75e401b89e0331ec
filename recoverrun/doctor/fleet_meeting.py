"""The sockets of a fleet's doctor: nodes meet where the job would, under the job's key.

Who gathers is decided by who can listen at the endpoint, once, and that place is held until all is
over. Nothing else may be done with the endpoint meanwhile: whoever only tried whether it is free
would keep it from another node of this machine, or take that node's trial for a foreign program.
"""

import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from recoverrun.config.run_config import RunConfig
from recoverrun.doctor.clock_rate import ClockRate
from recoverrun.doctor.fleet_gathering import (
    WAIT_S,
    FleetGathering,
    FleetVerdict,
    NodeStanding,
    Place,
    answered,
    standing,
)
from recoverrun.doctor.node_facts import NodeFacts
from recoverrun.doctor.run_directory import nearest
from recoverrun.launcher.network.addresses import TakenError, open_hub, open_uplink
from recoverrun.launcher.network.handshake_diagnosis import diagnose
from recoverrun.launcher.network.key_lookup import Keyring
from rendezvous.transport.links import Hub
from rendezvous.transport.station import Station

SAY_S = 0.5
AGAIN_S = 0.05
"""After so long a word is said again that found no connection."""

CALL_S = 2.0
TOLD_S = 20.0
"""How long the first node stays for the others to read the table."""

CALLS_AT_ONCE = 64
BATCH = 1000


def meet(config: RunConfig, keyring: Keyring, facts: NodeFacts) -> FleetVerdict | str:
    """The table of all nodes, or why there is none, "" if nobody gathers one.

    Raises RecoverrunError if this node has to gather, and cannot.
    """
    station = Station(keyring.key)
    try:
        try:
            hub = open_hub(station, config)
        except TakenError:
            hub = None
        with _reachable() as port:
            if hub is None:
                known = replace(facts, reach="rendezvous")  # Or nobody will hear of it.
                return _Teller(station, config, keyring, known, port).tell()
            with _marked(config.run_dir or Path("runs")) as mark:
                return _gather(
                    station, hub, config, replace(facts, reach="here"), port=port, mark=mark
                )
    finally:
        station.close()


@contextmanager
def _marked(run_dir: Path) -> Iterator[str]:
    """A file where the run directory is or would be, by which other nodes know that they see the
    same one; "" where there can be none.
    """
    mark = nearest(run_dir) / f".doctor.{secrets.token_hex(8)}"
    try:
        mark.touch(mode=0o600, exist_ok=False)
    except OSError:
        yield ""  # The check of the run directory tells why.
        return
    try:
        yield mark.name
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def _reachable() -> Iterator[int]:
    """A free port at which this node can be called. The kernel takes the calls."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024) as server:
        yield int(server.getsockname()[1])


def _gather(
    station: Station, hub: Hub, config: RunConfig, facts: NodeFacts, *, port: int, mark: str
) -> FleetVerdict | str:
    """The first node's part: hear all, call all, tell all."""
    assert config.endpoint is not None, "nodes meet at an endpoint"
    own, book = station.incarnation, FleetGathering(config.nnodes, time.monotonic(), mark)
    book.add_first(own, facts, (config.local_addr or config.endpoint.host, port))
    called, until = False, float("inf")
    while not book.over and time.monotonic() < until:
        station.wait(SAY_S)
        for _ in range(BATCH):
            incoming = hub.receive()
            if incoming is None:
                break
            with suppress(ValueError, RecursionError):  # Words of a stranger: no answer.
                answer = book.hear(
                    incoming.sender.decode("ascii"),
                    incoming.address,
                    incoming.frames[-1] if incoming.frames else b"",
                    time.time(),
                    time.monotonic(),
                )
                hub.send(incoming.sender, own.encode(), answer)
        book.tick(time.monotonic())
        if book.peers is not None and not called:
            called = True
            book.take_calls(own, _calls(book.peers, own))
        if book.verdict is not None and until == float("inf"):
            until = time.monotonic() + TOLD_S
    return book.verdict or ""


class _Teller:
    """Any other node's part: say where we stand until there is a table."""

    def __init__(
        self, station: Station, config: RunConfig, keyring: Keyring, facts: NodeFacts, port: int
    ) -> None:
        self._station = station
        self._config = config
        self._keyring = keyring
        self._facts = facts
        self._dealer = open_uplink(station, config.endpoints)
        self._clock = ClockRate()
        self._until = time.monotonic() + WAIT_S
        self._say_at = 0.0
        self._said = NodeStanding(host=config.local_addr, port=port, wall_s=0.0, said_s=0.0)
        self._verdict: FleetVerdict | None = None

    def tell(self) -> FleetVerdict | str:
        """The table, or why there is none."""
        while (now := time.monotonic()) < self._until:
            if now >= self._say_at:
                self._say_at = now + (SAY_S if self._say() else AGAIN_S)
            self._station.wait(max(0.0, self._say_at - time.monotonic()))
            self._hear()
            if self._verdict is not None:
                self._say()  # So that the first node need not stay for us.
                return self._verdict
            failures = self._dealer.new_strangers()
            why = diagnose(self._config.endpoints, self._keyring, failures) if failures else ""
            if why:
                return why
        return ""

    def _say(self) -> bool:
        """False while there is no connection."""
        now = replace(self._said, wall_s=time.time(), said_s=time.monotonic())
        return self._dealer.send(standing(self._facts, now))

    def _hear(self) -> None:
        for _ in range(BATCH):
            frames = self._dealer.receive()
            if frames is None:
                return
            with suppress(ValueError, RecursionError):  # Whoever answers may be anybody.
                self._take(frames[-1])

    def _take(self, text: bytes) -> None:
        answer = answered(text)
        self._clock.hear(answer.said_s, answer.stamped_s, time.monotonic())
        self._until = time.monotonic() + 2 * WAIT_S
        said = replace(self._said, rate=self._clock.rate)
        if said.shares is None:
            place = nearest(self._config.run_dir or Path("runs"))
            said = replace(said, shares=bool(answer.mark) and (place / answer.mark).exists())
        if answer.peers is not None and said.calls is None:
            calls = _calls(answer.peers, self._station.incarnation)
            said, self._say_at = replace(said, calls=calls), 0.0
        if answer.verdict is not None:
            said, self._verdict = replace(said, has_table=True), answer.verdict
        self._said = said


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
