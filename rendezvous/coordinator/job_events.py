"""The events of the coordinator: one at a time."""

from dataclasses import dataclass

from rendezvous.protocol.messages import Message, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A launcher is silent or gone, and with it the workers it hosted.

    `silent_s`: how long ago it was heard last, 0 if it is gone for another reason than its silence.
    """

    node: str
    ranks: tuple[int, ...]
    reason: str
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTaken:
    """Another launcher has the place of a lost node: it hosts the ranks that were there."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """This coordinator has taken over from another: everybody reports in a new generation."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The job is being stopped, for a reason that is not the coordinator's own."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class Closing:
    """The job was stopped, and its workers have ended: they say no more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Received | NodeLost | PlaceTaken | Resumed | Stopping | Closing | Tick
