"""The call of a coordinating launcher to the endpoint of its job, while a node is missing.

A launcher that is started again at the endpoint finds nobody to ask there: it listens itself, and
waits for a job to form. The one that coordinates elsewhere calls it, and says where that is.
Names are looked up anew for each round: a pod that is started again has another address.
"""

from collections.abc import Callable, Collection, Sequence

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.network.addresses import addresses
from recoverrun.launcher.network.blocking_calls import BlockingCalls
from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Running
from rendezvous.transport.links import Dealer
from rendezvous.transport.station import Station

ROUND_S = 5.0
"""A call that is not put through for so long is given up."""

PAUSE_S, PAUSE_MOST_S = 1.0, 8.0
"""The wait before the next round: each is twice as long as the one before."""

Places = list[tuple[str, int]]


class EndpointCall:
    """The call to one of `endpoints`. Nothing in it waits."""

    def __init__(
        self, station: Station, endpoints: Sequence[Endpoint], words: Callable[[], Running]
    ) -> None:
        """`words` are said to whoever listens there."""
        self._words = words
        self._station = station
        self._endpoints = endpoints
        self._lookups: BlockingCalls[Places] | None = None
        self._dealer: Dealer | None = None
        self._looking = False
        self._pause_s = PAUSE_S
        self._due: float | None = None  # the end of this round, or of the pause before the next

    def read(self, ready: Collection[object]) -> None:
        """Hear what has come, of what is `ready`."""
        found = self._lookups.take(ready) if self._lookups is not None else []
        if found and self._looking:
            self._looking = False
            self._call(found[-1])

    def tick(self, now: float, *, misses: bool) -> None:
        """Time passed. `misses`: the job has a place for who listens there."""
        if not misses:
            self._pause_s, self._due = PAUSE_S, None
            self._hang_up()
            return
        if self._dealer is not None:
            self._speak(self._dealer)
        if self._due is None or now >= self._due:
            self._next(now)

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        return self._due

    def close(self) -> None:
        """Ask nobody any more. The station closes the connection."""
        if self._lookups is not None:
            self._lookups.close()

    def _next(self, now: float) -> None:
        """Begin a round, or the pause after one; a call that is heard, or a lookup, goes on."""
        if self._looking or (self._dealer is not None and self._dealer.up):
            self._due = now + ROUND_S
            return
        if self._dealer is not None:
            self._hang_up()
            self._due = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)
            return
        if self._lookups is None:
            self._lookups = BlockingCalls(self._station)
        endpoints = self._endpoints
        self._looking = self._lookups.ask(lambda: _places(endpoints))
        self._due = now + ROUND_S

    def _call(self, places: Places) -> None:
        try:
            # Under a name of its own: nobody may hear two calls of one launcher.
            self._dealer = self._station.connect_tcp(*places, apart=True)
        except OSError:
            self._dealer = None  # a place that cannot be; the next lookup may find another

    def _speak(self, dealer: Dealer) -> None:
        while dealer.receive() is not None:
            pass  # Whoever has something to say to this launcher calls it.
        if dealer.met():
            dealer.send(codec.encode(self._words()))
            self._pause_s = PAUSE_S

    def _hang_up(self) -> None:
        self._looking = False
        if self._dealer is not None:
            self._station.drop(self._dealer)
            self._dealer = None


def _places(endpoints: Sequence[Endpoint]) -> Places:
    return [(host, one.port) for one in endpoints for host in addresses(one.host)]
