"""The loop of an exchange: one thread, one poll over its launcher, its keeper and its peers.

Peers are called as launchers are, with the key of the job. What is large is always an answer: who
asks has a bounded number of questions open, so nothing piles up anywhere.
"""

import socket
import time
from collections.abc import Collection
from contextlib import suppress
from typing import NoReturn, get_args

from recoverrun.exchange.ordered_faults import OrderedFaults
from rendezvous.bays import exchange_line, helper_process, kept_heap
from rendezvous.bays.allowance import read
from rendezvous.bays.exchange_line import framed
from rendezvous.bays.exchanged_memory import KeeperMemory
from rendezvous.bays.packets import Closed
from rendezvous.protocol.codec import RemoteProtocolError
from rendezvous.protocol.exchange_messages import Bytes, Described, Employ, Request, Trouble
from rendezvous.protocol.snapshot_messages import Circle, Exchanging
from rendezvous.snapshots.exchange import Exchange
from rendezvous.snapshots.exchange_work import Answer, Ask, Effect, Tell
from rendezvous.snapshots.parity_code import fastest
from rendezvous.transport.keys import JobKey
from rendezvous.transport.links import Dealer, Hub
from rendezvous.transport.own_addresses import address_towards
from rendezvous.transport.station import Station

BATCH = 64
"""Messages of one peer that are taken at once."""

TELL_AGAIN_S = 2.0
"""What the coordinator may have missed is told again."""

CALL_AGAIN_S = 0.2
"""After that a keeper that could not be called is called again."""

GIVE_BACK_S = 1.0
"""After so long without a part of others, the heap that parts have needed is given back."""

IDLE_S = 60.0

OOM_SCORE = 600
"""It goes before the keeper: what it has is made again."""

REQUESTS = get_args(Request)


class ExchangeLoop:
    """The loop of one exchange, which its launcher has told where to listen."""

    def __init__(self, line: socket.socket, keeper: str, employ: Employ) -> None:
        """Raises OSError where it cannot listen."""
        self._line = line
        key = JobKey(employ.key) if employ.key else None
        self._station = Station(key)
        self._hub: Hub = self._station.listen_tcp(_address(employ), 0)
        faults = OrderedFaults(employ.inject)
        self._memory = KeeperMemory(keeper, read(employ.allowance), amid=faults.amid)
        self._watched: int | None = None  # the line to the keeper
        self._call_at = self._tell_at = 0.0
        self._machine = Exchange(self._memory, fastest(), authenticated=key is not None)
        self._circle: Circle | None = None
        self._dealers: dict[tuple[str, int], Dealer] = {}
        self._give_back_at: float | None = None
        self._station.watch(line.fileno())

    def run(self) -> None:
        """Returns once the launcher has gone."""
        self._tell(time.monotonic())
        while True:
            now = time.monotonic()
            ready = self._station.wait(self._due(now) - now)
            now = time.monotonic()
            if self._line.fileno() in ready and not self._obey(now):
                break
            self._hear_keeper(now)
            self._hear_peers(ready, now)
            due = self._machine.deadline()
            if due is not None and due <= now:
                self._do(self._machine.tick(now), now)
            if now >= self._tell_at and not self._machine.is_settled:
                self._tell(now)
            if self._give_back_at is not None and now >= self._give_back_at:
                self._give_back_at = None
                kept_heap.give_back()
        self._station.close()

    def _due(self, now: float) -> float:
        times = [now + IDLE_S, self._machine.deadline(), self._give_back_at]
        times.append(None if self._machine.is_settled else self._tell_at)
        times.append(self._call_at if self._memory.line is None else None)
        return min(at for at in times if at is not None)

    # --------------------------------------------------------------------------- this node

    def _obey(self, now: float) -> bool:
        """False if the launcher has gone."""
        try:
            while True:
                message = exchange_line.hear(self._line)
                if isinstance(message, Circle):
                    self._join(message, now)
        except BlockingIOError:
            return True
        except (Closed, RemoteProtocolError):
            return False

    def _join(self, circle: Circle, now: float) -> None:
        if (circle.attempt, circle.number) > self._machine.heard:
            self._circle = circle
            kept = set(zip(circle.hosts, circle.ports, strict=True))
            for place in self._dealers.keys() - kept:
                self._station.drop(self._dealers.pop(place))
        self._do(self._machine.join(circle, now), now)

    def _hear_keeper(self, now: float) -> None:
        if self._memory.line is None and now >= self._call_at:
            self._memory.call()
            self._call_at = now + CALL_AGAIN_S
        for holding in self._memory.hear():
            self._do(self._machine.hear(holding, now), now)
        line = self._memory.line
        fd = None if line is None else line.fileno()
        if fd != self._watched:
            # Of a line that is closed the poll does not know any more.
            if self._watched is not None:
                self._station.unwatch(self._watched)
            if fd is not None:
                self._station.watch(fd)
            self._watched = fd

    def _tell(self, now: float, trouble: str = "") -> None:
        """Say to the launcher what there is to say; it reads, or has gone."""
        self._tell_at = now + TELL_AGAIN_S
        machine = self._machine
        standing = Exchanging(port=self._hub.port, heard=machine.heard, unable=machine.unable)
        with suppress(Closed, BlockingIOError):
            exchange_line.say(self._line, standing)
            if trouble:
                exchange_line.say(self._line, Trouble(reason=trouble))

    # --------------------------------------------------------------------------- peers

    def _hear_peers(self, ready: Collection[object], now: float) -> None:
        for _ in range(BATCH if self._hub in ready else 0):
            incoming = self._hub.receive()
            if incoming is None:
                break
            with suppress(RemoteProtocolError):
                message = exchange_line.read(incoming.frames[0])
                if isinstance(message, REQUESTS):
                    peer = incoming.sender.decode("ascii")
                    self._do(self._machine.ask(peer, message, now), now)
        for place, dealer in list(self._dealers.items()):
            if dealer in ready:
                self._hear_answers(dealer, now)
            if dealer.met():
                for node in self._nodes_at(place):
                    self._do(self._machine.met(node, now), now)

    def _hear_answers(self, dealer: Dealer, now: float) -> None:
        for _ in range(BATCH):
            frames = dealer.receive_views()
            if frames is None:
                break
            with suppress(RemoteProtocolError):
                message = exchange_line.read(bytes(frames[0]))
                if isinstance(message, Described | Bytes):
                    data = frames[1] if len(frames) > 1 else b""
                    self._give_back_at = now + GIVE_BACK_S
                    self._do(self._machine.answer(message, data, now), now)

    def _nodes_at(self, place: tuple[str, int]) -> list[int]:
        circle = self._circle
        if circle is None:
            return []
        places = zip(circle.hosts, circle.ports, strict=True)
        return [node for node, one in enumerate(places) if one == place]

    def _do(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case Ask(node=node, request=request):
                    dealer = self._dealer(node)
                    if dealer is not None:
                        dealer.send(framed(request))  # Unless it is answered it is asked again.
                case Answer(peer=peer, message=message, data=data):
                    frames = (framed(message), data) if data else (framed(message),)
                    self._give_back_at = now + GIVE_BACK_S
                    self._hub.send(peer.encode(), *frames)
                case Tell(trouble=trouble):
                    self._tell(now, trouble)

    def _dealer(self, node: int) -> Dealer | None:
        circle = self._circle
        if circle is None or not circle.hosts[node]:
            return None
        place = circle.hosts[node], circle.ports[node]
        if place not in self._dealers:
            with suppress(OSError):  # a place that cannot be
                self._dealers[place] = self._station.connect_tcp(place)
        return self._dealers.get(place)


def run(launcher: int, keeper: str) -> None:
    """Serve until the launcher at the end of this descriptor has gone."""
    helper_process.become("exchange", oom_score=OOM_SCORE)
    kept_heap.keep_freed()
    line = socket.socket(fileno=launcher)
    line.setblocking(True)
    first = exchange_line.hear(line)
    line.setblocking(False)
    if not isinstance(first, Employ):
        _end(line, "the launcher did not say where to listen")
    try:
        loop = ExchangeLoop(line, keeper, first)
    except OSError as error:
        _end(line, f"no parity of snapshots: cannot listen for other nodes: {error.strerror}")
    loop.run()


def _address(employ: Employ) -> str:
    """The address to listen at. IPv4 before IPv6, as launchers have it."""
    try:
        found = socket.getaddrinfo(employ.host, employ.port, type=socket.SOCK_STREAM)
    except OSError:
        return "*"
    addresses = sorted((str(info[4][0]) for info in found), key=lambda one: ":" in one)
    return address_towards(addresses[0], employ.port)


def _end(line: socket.socket, why: str) -> NoReturn:
    with suppress(Closed, BlockingIOError):
        exchange_line.say(line, Trouble(reason=why))
    raise SystemExit(1)
