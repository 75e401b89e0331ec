"""`recoverrun witness`: a small process on a machine without training, with a vote in many jobs.

It remembers what its votes have said for as long as it runs, and under the name that it has for as
long: one that is started again is another witness, which the launchers take in if they agree.
"""

import time
from collections.abc import Callable

from recoverrun.launcher.network.witness_client import understood
from recoverrun.launcher.node.signals import SignalInbox
from rendezvous.consensus.register_events import RegisterMessage
from rendezvous.consensus.witness import Witness
from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Beat
from rendezvous.protocol.messages import Message
from rendezvous.protocol.register_messages import Testimony
from rendezvous.transport.links import Hub
from rendezvous.transport.station import Station

VOTES_MOST = 100_000
"""Jobs that it remembers, some 500 bytes each. None is forgotten: the next ones get no vote."""

BATCH = 1000
LOOK_S = 60.0


class WitnessServer:
    """All votes of one witness, whose name is `own`."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._votes: dict[str, Witness] = {}

    def answer(self, message: Message) -> Message | None:
        """The answer to the launcher that sent this."""
        if isinstance(message, Beat):
            return Beat(node="witness", incarnation=self._own)
        if not isinstance(message, Testimony):
            return None
        asked = understood(message.frame)
        vote = self._vote(message.vote)
        if vote is None or not isinstance(asked, RegisterMessage):
            return None
        said = vote.hear(asked)
        return None if said is None else Testimony(vote=message.vote, frame=codec.encode(said))

    def _vote(self, name: str) -> Witness | None:
        if name.partition("/")[0] != self._own:
            return None  # One that was here before has promised we do not know what.
        if name not in self._votes and len(self._votes) < VOTES_MOST:
            self._votes[name] = Witness()
        return self._votes.get(name)


def serve(station: Station, hub: Hub, signals: SignalInbox, say: Callable[[str], None]) -> None:
    """Answer until a signal comes."""
    server = WitnessServer(station.incarnation)
    own = station.incarnation.encode()
    station.watch(signals.fd)
    while True:
        ready = station.wait(LOOK_S)
        if signals.fd in ready and signals.take():
            return
        for _ in range(BATCH):
            incoming = hub.receive()
            if incoming is None:
                break
            message = understood(incoming.frames[-1]) if incoming.frames else None
            answer = server.answer(message) if message is not None else None
            if answer is not None:
                hub.send(incoming.sender, own, codec.encode(answer))
        for words in station.log_lines(time.monotonic()):
            say(words)
