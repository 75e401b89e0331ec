"""What the coordinator wants done: the launcher's loop carries it out and decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rendezvous.protocol.arrival_messages import StartAgain
from rendezvous.protocol.hang_messages import Inspect
from rendezvous.protocol.messages import Kill, Message, Stop

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


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


@dataclass(frozen=True, slots=True)
class Record:
    """Append a line to the journal; `event` is a name of the table in `journal`."""

    event: str
    reason: str
    fields: Mapping[str, Json] = field(default_factory=dict)


def notice(words: str) -> Record:
    """What a person should read once, and no rank has said."""
    return Record("notice.give", words, {"rank": -1})


Effect = ToRank | KillRanks | StartRanks | Inspection | StopJob | Record
