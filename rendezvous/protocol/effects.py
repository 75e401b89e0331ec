"""The effects of the coordinator: the launcher's loop carries them out and decides nothing."""

from dataclasses import dataclass

from rendezvous.protocol.arrival_messages import StartAgain
from rendezvous.protocol.hang_messages import Inspect
from rendezvous.protocol.messages import Kill, Message, Stop
from rendezvous.protocol.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRank:
    """Send `message` to the control socket of this worker."""

    rank: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRanks:
    """Have the launchers that host these ranks end them now."""

    kill: Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRanks:
    """Have the launchers that host these ranks start them again."""

    start: StartAgain


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Have the launchers that host these ranks look at them."""

    inspect: Inspect


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """Tell every launcher to end its workers and to leave with the code of `stop`."""

    stop: Stop


Effect = ToRank | KillRanks | StartRanks | Inspection | StopJob | Record
