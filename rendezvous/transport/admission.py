"""Admission to a socket that other machines can reach: who may speak, and how much.

With a key: the owner of a public key that proves it (see `keys`). Without: whoever comes, under a
name that is free. Both get a bucket of messages and one of bytes; whoever empties them is cut off,
and refused for a while that doubles each time. All memory here is bounded: what a stranger can
cause to be remembered is forgotten in the order in which it came.
"""

from collections import OrderedDict
from dataclasses import dataclass

from rendezvous.transport.keys import INCARNATION_CHARS, JobKey

MESSAGES_PER_S, MESSAGES_AT_ONCE = 10_000, 50_000
BYTES_PER_S, BYTES_AT_ONCE = 64 << 20, 512 << 20
"""What a launcher with 64 busy ranks never needs, and a flood reaches within seconds."""

CUT_OFF_S, CUT_OFF_MOST_S = 1.0, 60.0
PEERS = 20_000
"""Peers that are remembered."""


@dataclass(slots=True)
class _Bucket:
    messages: float
    bytes: float
    filled_at: float

    def take(self, size: int, now: float) -> bool:
        span = max(0.0, now - self.filled_at)
        self.messages = min(MESSAGES_AT_ONCE, self.messages + span * MESSAGES_PER_S) - 1
        self.bytes = min(BYTES_AT_ONCE, self.bytes + span * BYTES_PER_S) - size
        self.filled_at = now
        return self.messages >= 0 and self.bytes >= 0


@dataclass(slots=True)
class _Peer:
    routing_id: bytes
    user: str  # who it was at the handshake: its public key in hex, "" without a key
    bucket: _Bucket


@dataclass(slots=True)
class _Sentence:
    """A public key, or without a key an address, that is refused."""

    strikes: int
    until: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The message is dropped and the connection closed; `words` say why."""

    words: str


class Admission:
    """Judges handshakes and messages. The time is passed in."""

    def __init__(self, key: JobKey | None) -> None:
        self._key = key
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()  # by incarnation
        self._refused: OrderedDict[str, _Sentence] = OrderedDict()  # by user

    def admits(self, user: str, now: float) -> bool:
        """True if the owner of this public key (hex) may connect."""
        sentence = self._refused.get(user)
        return sentence is None or now >= sentence.until

    def hear(self, sender: bytes, user: str, size: int, now: float) -> bytes | Refused:
        """The incarnation that speaks, or why nobody listens to it."""
        peer = self._known(sender, user, now)
        if isinstance(peer, Refused):
            return peer
        if not self.admits(user, now):
            return Refused("a peer sent data after it was disconnected")
        if not peer.bucket.take(size, now):
            self._punish(user, now)
            return Refused("a peer sent more than any launcher needs to send, and was disconnected")
        return self._incarnation(peer.routing_id)

    def routing_id(self, incarnation: bytes) -> bytes:
        """The socket's name of this peer."""
        peer = self._peers.get(incarnation)
        return incarnation if peer is None else peer.routing_id

    def revoke(self, incarnation: bytes) -> None:
        """Refuse this peer for ever, or until `pardon`."""
        peer = self._peers.get(incarnation)
        if peer is not None and peer.user:
            self._remember(peer.user, _Sentence(strikes=0, until=float("inf")))

    def pardon(self, incarnation: bytes) -> None:
        peer = self._peers.get(incarnation)
        if peer is not None:
            self._refused.pop(peer.user, None)

    def _known(self, sender: bytes, user: str, now: float) -> _Peer | Refused:
        incarnation = self._incarnation(sender)
        peer = self._peers.get(incarnation)
        if peer is not None and peer.routing_id == sender and peer.user == user:
            return peer
        if self._key is not None:
            if not self._key.incarnation(sender, bytes.fromhex(user)):
                return Refused("a peer used a name that its key does not prove")
        elif not (sender.isalnum() and sender.isascii() and len(sender) <= 64):
            return Refused("a peer used a name that no launcher has")
        bucket = _Bucket(MESSAGES_AT_ONCE, BYTES_AT_ONCE, now)
        self._peers[incarnation] = peer = _Peer(sender, user, bucket)
        if len(self._peers) > PEERS:
            self._peers.popitem(last=False)
        return peer

    def _incarnation(self, sender: bytes) -> bytes:
        return sender if self._key is None else sender[:INCARNATION_CHARS]

    def _punish(self, user: str, now: float) -> None:
        if not user:
            return  # Without a key one name is as good as another: only the connection goes.
        before = self._refused.get(user)
        strikes = 0 if before is None else before.strikes + 1
        span = min(CUT_OFF_MOST_S, CUT_OFF_S * 2**strikes)
        self._remember(user, _Sentence(strikes, now + span))

    def _remember(self, user: str, sentence: _Sentence) -> None:
        self._refused[user] = sentence
        self._refused.move_to_end(user)
        if len(self._refused) > PEERS:
            self._refused.popitem(last=False)
