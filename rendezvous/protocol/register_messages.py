"""The messages of launchers to each other: copies of the store, ballots of the view register,
statements.

Part of the protocol that `messages` collects. docs/rendezvous.md explains what they are for.
"""

from dataclasses import dataclass

from rendezvous.protocol.peer import Peer

# ---------------------------------------------------------------------------- the c10d store


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Leader -> follower: the `index`-th change of the store in `term`."""

    term: int
    index: int
    call: bytes  # the frame of a StoreCall that writes, or b""
    superseded: int  # the generation that has begun, 0 if none


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Leader -> follower: a part of all that the store holds after change `index` of `term`."""

    term: int
    index: int
    part: int
    parts: int
    generation: int
    keys: tuple[tuple[int, str, bytes], ...]  # (generation, key, value)
    answers: tuple[bytes, ...]  # frames of the answers that a repeated call gets again


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Follower -> leader: I hold all changes of `term` up to `index`; -1: I need the whole."""

    term: int
    index: int


# ---------------------------------------------------------------------------- the view register

Ballot = tuple[int, str]
"""(round, launcher): unique, and ordered as tuples are."""

ConfigurationFields = tuple[int, int, tuple[str, ...], str]
"""(number, term, members, witness) of a `configuration.Configuration`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Candidate -> voters of `configuration`: from now on accept nothing below `ballot`."""

    ballot: Ballot
    configuration: ConfigurationFields  # the newest that the candidate knows to be decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Voter -> candidate: yes, and this is what I had accepted after configuration `number`."""

    ballot: Ballot
    number: int
    accepted_in: Ballot  # (0, "") if nothing
    accepted: ConfigurationFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Voter -> candidate or leader: no, I have promised more, or my lease runs for `hold_s` yet."""

    ballot: Ballot
    promised: Ballot
    hold_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Leader -> voters of `base`: let `configuration` follow. The request proves `base` decided."""

    ballot: Ballot
    base: ConfigurationFields
    configuration: ConfigurationFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Voter -> leader: I have accepted it."""

    ballot: Ballot
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConfiguration:
    """Anybody -> anybody who knows less: this configuration is decided."""

    configuration: ConfigurationFields


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChange:
    """Leader -> members of configuration `number` - 1: the next is decided, and differs by this."""

    number: int
    leader: str
    out: tuple[str, ...]
    news: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Leader -> voters: grant me a lease. `sent_at` is the leader's clock and comes back as is."""

    ballot: Ballot
    number: int
    sent_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Voter -> leader: nobody else gets my vote for the length of a lease from now on."""

    ballot: Ballot
    number: int
    sent_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Member -> leader: I live, this is my configuration; `undecided`: I accepted a newer one."""

    number: int
    sent_at: float
    undecided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Leader -> member: I lead configuration `number`. `sent_at` comes back as it was.

    `kept`: the leader had its lease, and no configuration without this member was under way.
    """

    number: int
    sent_at: float
    kept: bool


# ---------------------------------------------------------------------------- a successor


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """L -> C: a part of what this launcher remembers, for the coordinator that begins `term`.

    Said until that coordinator speaks. `begun`: workers of `attempt` were started here. `node` and
    `peer`: who has the place `node_rank`, which this launcher may have taken lately.
    """

    term: int
    attempt: int
    begun: bool
    part: int
    parts: int
    frames: tuple[bytes, ...]  # messages of and to its workers, see `standing.Memory`
    node_rank: int = -1
    node: str = ""
    peer: tuple[Peer, ...] = ()
    asked: int = -1  # the node rank that it asked for


# ---------------------------------------------------------------------------- a witness


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """Launcher <-> witness: a ballot's message to or from its vote of that name.

    The name says who the witness is, and for which job. A vote of another witness is not answered.
    """

    vote: str
    frame: bytes
