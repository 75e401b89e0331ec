"""Losses that count against nodes, told to the launchers that may coordinate next."""

from collections.abc import Collection, Iterable, Mapping

from recoverrun.launcher.leadership.acts import Act
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.membership.flapping import FlappingNodes


def count_losses(
    nodes: FlappingNodes, gone: Mapping[str, str], members: Iterable[str], now: float
) -> list[Act]:
    """Count the loss of the launchers `gone`, with why, and have `members` remember it."""
    acts: list[Act] = [
        record for name, why in gone.items() for record in nodes.lose(name, why, now)
    ]
    return acts + tell_losses(nodes, members, now, gone)


def tell_losses(
    nodes: FlappingNodes, to: Iterable[str], now: float, gone: Collection[str] | None = None
) -> list[Act]:
    """Have the launchers `to` remember losses: those of `gone`, or all."""
    told = nodes.told(now, gone)
    return [Envelope(name, NOBODY, one) for name in to for one in told]
