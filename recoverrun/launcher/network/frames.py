"""Messages for other launchers and their workers: envelopes as frames, and back.

Much of what a coordinator says, it says to everybody, and to each worker of a launcher. A message
is encoded once, however many it goes to, and goes once to each launcher, with the ranks it is for.
Where everybody is told the same beside what is his own (`Start`), the same is a frame of its own,
encoded and held in memory once.

    [the ranks, by commas] [message]    to workers
    [message]                           to a launcher
    [Start] [Roster]                    to a launcher

Each frame is encrypted by itself, so there is none that says nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Roster, Start
from rendezvous.protocol.messages import Message
from rendezvous.transport.sockets import Bulk, bulk

NOBODY = -1
"""An envelope for the launcher itself, not for one of its ranks."""

RANK_DIGITS = 10
RANKS_MOST = 4096
"""Workers of one launcher."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Send `message` to the launcher `to`; `rank` is the worker it is for, or NOBODY."""

    to: str
    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class Packet:
    """Frames for the launcher `to`."""

    to: str
    frames: tuple[bytes | Bulk, ...]


def packets(envelopes: Iterable[Envelope]) -> Iterator[Packet]:
    """The packets in the order of `envelopes`; neighbours with one message for one launcher are one
    packet.
    """
    held = list(envelopes)  # So that no identity is given twice meanwhile.
    if len(held) == 1 and held[0].rank == NOBODY and not isinstance(held[0].message, Start):
        yield Packet(held[0].to, (codec.encode(held[0].message),))  # an answer, as most are
        return
    frames: dict[int, tuple[bytes | Bulk, ...]] = {}  # by the message's identity
    rosters: dict[int, Bulk] = {}
    for (to, _), group in groupby(held, key=lambda envelope: (envelope.to, id(envelope.message))):
        several = list(group)
        message = several[0].message
        if isinstance(message, Start):
            content = _start(message, rosters)
        else:
            content = frames.get(id(message)) or (codec.encode(message),)
            frames[id(message)] = content
        ranks = [b"%d" % envelope.rank for envelope in several if envelope.rank != NOBODY]
        yield Packet(to, (b",".join(ranks), *content) if ranks else content)


def _start(start: Start, rosters: dict[int, Bulk]) -> tuple[bytes | Bulk, ...]:
    if not start.peers:
        return (codec.encode(start),)
    if id(start.peers) not in rosters:
        roster = Roster(nodes=start.nodes, peers=start.peers, asked=start.asked)
        rosters[id(start.peers)] = bulk(codec.encode(roster))
    return codec.encode(replace(start, nodes=(), peers=(), asked=())), rosters[id(start.peers)]


Content = tuple[Sequence[bytes], Message]
"""A message, and the frames before it."""


def opened(frames: Sequence[bytes]) -> Content:
    """The content of `frames`. Raises RemoteProtocolError."""
    if not frames:
        raise codec.RemoteProtocolError("a message has no frame")
    message = codec.decode(frames[-1])
    if not isinstance(message, Roster):
        return frames[:-1], message
    start = codec.decode(frames[-2]) if len(frames) > 1 else None
    if not isinstance(start, Start):
        raise codec.RemoteProtocolError("a Roster came without its Start")
    told = replace(start, nodes=message.nodes, peers=message.peers, asked=message.asked)
    return frames[:-2], told


def ranks(address: Sequence[bytes]) -> tuple[int, ...]:
    """The workers that a message is for, of the frame before it; (NOBODY,) for the launcher."""
    parts = address[-1].split(b",", RANKS_MOST) if address else []
    if parts and all(part.isdigit() and len(part) < RANK_DIGITS for part in parts):
        return tuple(map(int, parts))
    return (NOBODY,)
