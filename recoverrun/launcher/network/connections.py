"""The connections between this launcher and the others of its job.

Every launcher listens. The one at the endpoint is called by all the others, because its place is
the only one they know; where the rest can be reached is told to everybody when the job forms. From
then on each calls whoever may ever lead. What is said to a launcher goes over our own call, and
where there is none, as the answer to its call.

A call that breaks is asked about at once: only a host that refuses connections proves that a
launcher has ended.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.addresses import (
    TakenError,
    addresses,
    answer_again,
    claim,
    local_address,
    open_hub,
    open_uplink,
    understood,
)
from recoverrun.launcher.network.frames import NOBODY, Envelope, opened, packets, ranks
from recoverrun.launcher.network.inquiries import Inquiry
from recoverrun.launcher.network.side_door import open_side_door
from rendezvous.protocol import codec
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Redirect, Start
from rendezvous.protocol.messages import Message
from rendezvous.transport.links import Dealer, Hub
from rendezvous.transport.port_probe import Probe
from rendezvous.transport.station import Station

BATCH = 1000
"""Messages taken from one socket at once, so that no flood holds up the rest of the loop."""

BACKLOG = 10_000
"""Messages for the coordinator that wait for a connection."""

CLAIM_AGAIN_S = 1.0
"""After that we try again to listen at an endpoint whose port was taken."""

Place = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, slots=True)
class Word:
    """`message` came from `sender`, "" if that has not told its name yet; for `ranks` or NOBODY.

    `called`: as the answer to a call of ours.
    """

    sender: str
    ranks: tuple[int, ...]
    message: Message
    called: bool = False


@dataclass(slots=True)
class _Call:
    """Our call to one launcher."""

    dealer: Dealer
    place: Place | None  # where its host can be asked about it
    name: str = ""
    probe: Probe | None = None
    inquiry: Inquiry = field(default_factory=Inquiry)


class Connections:
    """All of them. They are the station's, which closes them."""

    def __init__(self, station: Station, config: RunConfig) -> None:
        self._station = station
        self._config = config
        self._hub: Hub | None = None
        self._uplink: _Call | None = None
        self._calls: dict[str, _Call] = {}
        self.places: dict[str, Place] = {}  # of launchers of the job, by name
        self._elsewhere: Place | None = None  # where to call instead of the endpoint
        self._over: set[str] = set()  # launchers that have ended
        self._backlog: deque[bytes] = deque(maxlen=BACKLOG)
        self.acquainted = False  # True once any launcher has answered us
        self.hosts = False  # True if we listen at the endpoint, for a job that forms here
        self.at_endpoint = False  # True if we listen there, whoever coordinates
        self._claim_at: float | None = None  # when to try that again

    def open(self, now: float) -> None:
        """Listen, and call whoever listens at the endpoint if that is not we.

        Raises RecoverrunError if neither is possible.
        """
        config = self._config
        try:
            self._hub = open_hub(self._station, config)
        except TakenError:
            self._claim_at = now + CLAIM_AGAIN_S
        self.hosts = self.at_endpoint = self._hub is not None
        if self.hosts or config.endpoint is None:
            return
        self._uplink = _Call(open_uplink(self._station, config.endpoints), place=None)
        try:
            self._hub = self._station.listen_tcp(local_address(config.endpoint), 0)
        except OSError as error:
            words = f"cannot listen for the other nodes: {error.strerror}"
            raise RecoverrunError(words, ExitCode.NEVER_FORMED) from error
        open_side_door(self._hub, config.endpoint)

    def claim(self, now: float) -> bool:
        """True if we listen at the endpoint from now on, and do not call it any more.

        Its port was taken, and not by a launcher that answers: by one that was about to end, or by
        a socket that only happened to have it. All who call would wait for each other.
        """
        if self._claim_at is None or now < self._claim_at:
            return False
        if self.acquainted or self._uplink is None or self._hub is None:
            self._claim_at = None
            return False
        self._claim_at = now + CLAIM_AGAIN_S
        if self._uplink.dealer.up or not claim(self._hub, self._config):
            return False
        self._claim_at = None
        self._station.drop(self._uplink.dealer)
        self._uplink, self.hosts, self.at_endpoint = None, True, True
        return True

    @property
    def port(self) -> int:
        """The port at which other launchers reach this one, 0 if there is none."""
        return self._hub.port if self._hub is not None else 0

    @property
    def uplink(self) -> Dealer | None:
        """Our call to the endpoint."""
        return self._uplink.dealer if self._uplink is not None else None

    # --------------------------------------------------------------------------- who is where

    def learn(self, start: Start, own: str) -> None:
        """The job is formed: this is where everybody is.

        A launcher that was left out listens at the endpoint again, where newcomers call. Not
        sooner: until it has a place, a refusal there proves that who it was has ended.
        """
        if self._config.had_endpoint and not self.at_endpoint and self._hub is not None:
            self.at_endpoint = answer_again(self._hub, self._config.of_job)
        for name, host, port, _ in start.peers:
            if host and port and name != own:
                self.places[name] = (host, port)
        endpoint, uplink = self._config.endpoint, self._uplink
        if uplink is not None and not uplink.name and endpoint is not None:
            uplink.name = start.leader
            host, port = uplink.dealer.place
            uplink.place = (addresses(host)[0], port)
            self.places.setdefault(start.leader, uplink.place)
            self._calls[start.leader] = uplink

    def call(self, names: Iterable[str], now: float) -> None:
        """Have a call to each of these launchers, if it is known where they are.

        Where one listens at the place of another, which is gone then, it is the same call: of two
        under our name only the first would be heard.
        """
        for name in names:
            place = self.places.get(name)
            if name in self._calls or name in self._over or place is None:
                continue
            former = next((call for call in self._calls.values() if call.place == place), None)
            if former is not None:
                self._stop_asking(former)
                self._over.add(former.name)
                self._calls[name] = self._calls.pop(former.name)
                former.name, former.inquiry = name, Inquiry(now)
            else:
                with suppress(OSError):  # a place that cannot be: nobody can be reached there
                    dealer = self._station.connect_tcp(place)
                    self._calls[name] = _Call(dealer, place, name, None, Inquiry(now))

    def place(self, name: str) -> Place | None:
        """The address of this launcher, if it is known."""
        call = self._calls.get(name)
        return self.places.get(name) or (call.place if call is not None else None)

    def turn_to(self, place: Place) -> None:
        """Call another place than the endpoint: who waits there for a job waits for nobody, and
        nobody for us.
        """
        self.hosts, self._claim_at = False, None
        self._elsewhere = place  # Not now: its answers are still being read.

    def _turn(self) -> None:
        place, self._elsewhere, uplink = self._elsewhere, None, self._uplink
        if place is None or (uplink and (uplink.name or uplink.dealer.place == place)):
            return
        with suppress(OSError):  # a place that cannot be
            dealer = self._station.connect_tcp(place)
            if uplink is not None:
                self._station.drop(uplink.dealer)
            self._uplink = _Call(dealer, place=None)

    # --------------------------------------------------------------------------- sending

    def send(self, to: str, rank: int, message: Message) -> bool:
        """False if nothing leads to the launcher `to` at this moment."""
        return self.send_all([Envelope(to, rank, message)])

    def send_all(self, envelopes: Iterable[Envelope]) -> bool:
        """False if nothing leads to one of those that they are for, at this moment."""
        own, reached = self._station.incarnation.encode(), True
        for packet in packets(envelopes):
            call = self._calls.get(packet.to)
            if call is None or not call.dealer.send(*packet.frames):
                hub = self._hub
                reached &= hub is not None and hub.send(packet.to.encode(), own, *packet.frames)
        return reached

    def tell_endpoint(self, message: Message) -> None:
        """Send to whoever listens at the endpoint: nobody else is known yet."""
        if self._uplink is not None:
            self._uplink.dealer.send(codec.encode(message))

    def queue(self, message: Message, coordinator: str) -> None:
        """Send to the coordinator; where nothing leads to it, as soon as something does."""
        self._backlog.append(codec.encode(message))
        self.flush(coordinator)

    def flush(self, coordinator: str) -> None:
        call = self._calls.get(coordinator)
        while self._backlog and call is not None and call.dealer.send(self._backlog[0]):
            self._backlog.popleft()

    def forget_backlog(self) -> None:
        """Another coordinator has been told all of this already."""
        self._backlog.clear()

    # --------------------------------------------------------------------------- receiving

    def read(self, ready: Collection[object], now: float) -> Iterator[Word]:
        """The messages that have come, of what is `ready`. Raises RecoverrunError at a stranger's
        protocol.
        """
        if self._hub is not None and self._hub in ready:
            yield from self._read_hub(self._hub, now)
        calls = [*self._calls.values()]
        if self._uplink is not None and not self._uplink.name:
            calls.append(self._uplink)
        for call in calls:
            if call.dealer in ready:
                yield from self._read_call(call, now)

    def met(self) -> list[str]:
        """Launchers to which a call has just been put through; "" is the one at the endpoint."""
        calls = [*self._calls.values()]
        if self._uplink is not None and not self._uplink.name:
            calls.append(self._uplink)
        return [call.name for call in calls if call.dealer.met()]

    def _read_hub(self, hub: Hub, now: float) -> Iterator[Word]:
        for _ in range(BATCH):
            incoming = hub.receive()
            if incoming is None:
                break
            content = understood(incoming, hub, self._station, now)
            if content is not None:
                yield Word(incoming.sender.decode("ascii"), ranks(content[0]), content[1])

    def _read_call(self, call: _Call, now: float) -> Iterator[Word]:
        for _ in range(BATCH):
            frames = call.dealer.receive()
            if frames is None:
                break
            try:
                heads, message = opened(frames)
            except codec.RemoteProtocolError as error:
                self._station.log(str(error), now)
                if isinstance(error, codec.VersionMismatch) and not self.acquainted:
                    sentence = f"{self._config.endpoint}: {error}"
                    raise RecoverrunError(sentence, ExitCode.NEVER_FORMED) from error
                continue
            self.acquainted = True
            claimed = heads[0].decode("ascii", "replace") if heads else ""  # by whoever answers
            if call.name and claimed and claimed != call.name:
                continue  # Another launcher listens now where the one we had called was.
            yield Word(call.name or claimed, ranks(heads[1:]), message, called=True)

    # --------------------------------------------------------------------------- the dead

    def ask(self, now: float) -> list[str]:
        """Launchers that have ended, each once, as their hosts say."""
        self._turn()
        ended = []
        for name, call in list(self._calls.items()):
            up = call.dealer.up or call.place is None
            asks = call.inquiry.look(up=up, now=now)
            if up or asks:
                self._stop_asking(call)
            if asks and call.place is not None:
                self._ask(call, call.place)
            if call.probe is not None and call.probe.refused():
                ended.append(name)
        for name in ended:
            self._over.add(name)
            call = self._calls.pop(name)
            self._stop_asking(call)
            self._station.drop(call.dealer)
            if call is self._uplink:
                self._uplink = None
        return ended

    def deadline(self) -> float | None:
        """The time at which `claim` or `ask` is next needed, or None."""
        calls = self._calls.values()
        times = [c.inquiry.due for c in calls if not c.dealer.up and c.place is not None]
        if self._claim_at is not None:
            times.append(self._claim_at)
        return min(times, default=None)

    def close(self) -> None:
        """Stop asking."""
        for call in self._calls.values():
            self._stop_asking(call)

    def _ask(self, call: _Call, place: Place) -> None:
        call.probe = Probe(*place)
        self._station.watch(call.probe.fd)

    def _stop_asking(self, call: _Call) -> None:
        if call.probe is not None:
            self._station.unwatch(call.probe.fd)
            call.probe.close()
            call.probe = None


def located(start: Start, places: Mapping[str, Place]) -> Start:
    """`start` with the host of its leader, who does not know by which others reach it."""
    peers = tuple(
        (name, host or places.get(name, ("", 0))[0], port, nproc)
        for name, host, port, nproc in start.peers
    )
    return replace(start, peers=peers)


def refer(connections: Connections, sender: str, leader: str) -> None:
    """Send who asks us for a place to the launcher that coordinates.

    Where that is not known yet, as we are about to be it, say nothing: who asks, asks again.
    """
    if (place := connections.place(leader)) is not None:
        connections.send(sender, NOBODY, Redirect(host=place[0], port=place[1]))
