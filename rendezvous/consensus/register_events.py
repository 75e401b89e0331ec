"""The events and the effects of the view register."""

from dataclasses import dataclass
from typing import Literal

from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import Answer, Call
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    Ballot,
    ConfigurationChange,
    Granted,
    Lead,
    NewConfiguration,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Rejected,
)

OnSilence = Literal["stop", "continue"]
"""What a launcher that is alone does, if nothing proves that the others are dead."""

RegisterMessage = (
    Prepare | Prepared | Rejected | Accept | Accepted
    | NewConfiguration | ConfigurationChange | Lead | Granted | Ping | Pong
)  # fmt: skip
"""The messages of this machine."""


@dataclass(frozen=True, slots=True)
class Heard:
    """`message` came from the launcher `sender`."""

    sender: str
    message: RegisterMessage


@dataclass(frozen=True, slots=True)
class Dead:
    """The host of `node` says that it is gone. Never a guess: it can not come back."""

    node: str


@dataclass(frozen=True, slots=True)
class Admit:
    """`node` asks to become a member."""

    node: str


@dataclass(frozen=True, slots=True)
class Part:
    """`node` leaves as planned, for this reason if that is known."""

    node: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """This launcher's replica has the state of the others: it could go on without them."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Workers of ours have just finished a step with those of `nodes`, each of which voted for it.

    These nodes live, whatever is heard of their launchers. Had others gone on without us or without
    one of them, the step would not have been finished: so nobody has to be left out, nor to stop,
    for silence. Nothing is granted by it: a lease still needs an answer.
    """

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. `chance` is a fresh random number in [0, 1): no two launchers stand at once."""

    chance: float


@dataclass(frozen=True, slots=True)
class WitnessSeen:
    """The witness of this name is there, and remembers all that it has answered by that name."""

    witness: str


@dataclass(frozen=True, slots=True)
class Answered:
    """etcd has answered the request of that serial, or nobody knows."""

    serial: int
    answer: Answer


Event = Heard | Dead | Admit | Part | Settled | Moved | WitnessSeen | Answered | Tick


@dataclass(frozen=True, slots=True)
class To:
    """Send to the launcher `node`; lost, late and repeated messages are expected."""

    node: str
    message: RegisterMessage


@dataclass(frozen=True, slots=True)
class Enrolled:
    """`configuration` is decided. Who is not in it has been left out, for good."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Elected:
    """A quorum follows us in `ballot`, round and name."""

    ballot: Ballot
    reason: str


@dataclass(frozen=True, slots=True)
class Cut:
    """There is no leader that we could follow, and we may not go on without one.

    `silent`: because of silence, which proves nothing.
    """

    reason: str
    silent: bool


@dataclass(frozen=True, slots=True)
class Request:
    """Ask etcd; the answer, or word of its absence, is to come back with this serial."""

    serial: int
    call: Call


Effect = To | Enrolled | Elected | Cut | Request
