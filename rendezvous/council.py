"""What the view register is told and what it wants done, and the times that it counts with."""

from dataclasses import dataclass
from typing import Literal

from rendezvous.ballots import (
    Accept,
    Accepted,
    Ballot,
    Granted,
    Lead,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Rejected,
    RollCall,
    RollChange,
)
from rendezvous.roll import Roll

BEAT_S = 0.5
"""A leader asks its few voters for a lease that often. Members ping it at their `tempo`."""

RESEND_S = 0.3
LEASE_S = 2.5
MARGIN = 0.03
"""Clocks may run 1 % fast or slow each; a holder of a lease or gate counts this much less."""

STAND_LEAST_S, STAND_SPREAD_S = 1.2, 1.6
"""After a lease has lapsed its voters wait so long, and up to so much longer, before they stand."""

STAND_NEXT_S = 0.15
"""After a leader's death is proved they stand in the order of the roll, this far apart."""

BID_S = 2.0
"""A candidate without a quorum gives way after that."""

CONTACT_S = 1.2
"""Whom its leader had answered that recently is in every roll: to be left out takes the silence of
the quickest `tempo` at least. The newest roll may be smaller than ours, and quicker."""

LEAP = 1000
"""Added to the numbers of a sole survivor's roll: nobody dead can have used them."""

ALONE_S = 6.0
"""Who has heard nobody of its roll for so long is alone: voters would have stood by then."""

OnSilence = Literal["stop", "continue"]
"""What a launcher that is alone does, if nothing proves that the others are dead."""

FENCE_S = 10.0
"""Without any leader for so long we are cut off, and say so."""

Council = (
    Prepare | Prepared | Rejected | Accept | Accepted
    | RollCall | RollChange | Lead | Granted | Ping | Pong
)  # fmt: skip
"""The messages of this machine."""


@dataclass(frozen=True, slots=True)
class Heard:
    """`message` came from the launcher `sender`."""

    sender: str
    message: Council


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
    """`node` leaves as planned."""

    node: str


@dataclass(frozen=True, slots=True)
class Settled:
    """This launcher's replica has the state of the others: it could go on without them."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. `chance` is a fresh random number in [0, 1): no two launchers stand at once."""

    chance: float


Event = Heard | Dead | Admit | Part | Settled | Tick


@dataclass(frozen=True, slots=True)
class To:
    """Send to the launcher `node`; lost, late and repeated messages are expected."""

    node: str
    message: Council


@dataclass(frozen=True, slots=True)
class Enrolled:
    """`roll` is decided. Who is not in it has been left out, for good."""

    roll: Roll


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


Effect = To | Enrolled | Elected | Cut
