"""Losses that count against nodes, and planned leaves: what launchers tell each other of them."""

from collections.abc import Iterable, Mapping

from recoverrun.launcher.leadership.acts import Act
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.protocol.formation_messages import PlannedLeaves
from rendezvous.protocol.records import Record


def count_losses(nodes: FlappingNodes, gone: Mapping[str, str], now: float) -> list[Record]:
    """Count the loss of the launchers `gone`, with why; the records for a person."""
    return [record for name, why in gone.items() for record in nodes.lose(name, why, now)]


def tell_book(nodes: FlappingNodes, to: Iterable[str], now: float) -> list[Act]:
    """Have the launchers `to` remember all losses and planned leaves."""
    told = nodes.told(now)
    return [Envelope(name, NOBODY, one) for name in to for one in told]


def tell_losses(
    nodes: FlappingNodes, gone: Iterable[str], to: Iterable[str], now: float
) -> list[Act]:
    """Have the launchers `to` remember the losses of `gone`, which they cannot have seen."""
    told = nodes.strikes(now, [*gone])
    return [Envelope(name, NOBODY, one) for name in to for one in told]


def leave(nodes: FlappingNodes, incarnation: str, to: Iterable[str]) -> list[Act]:
    """The launcher `incarnation` leaves as planned: have the launchers `to` remember it.

    It tells those that may lead next, as whoever leads may end before it can tell them; the leader
    tells all.
    """
    nodes.leave(incarnation)
    word = PlannedLeaves(launchers=(incarnation,))
    return [Envelope(name, NOBODY, word) for name in to if name != incarnation]
