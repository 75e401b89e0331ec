"""Losses that count against nodes, and planned leaves: what launchers tell each other of them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from recoverrun.launcher.leadership.acts import Act
from recoverrun.launcher.leadership.own_attempt import OwnAttempt
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.protocol.formation_messages import LossNews, PlannedLeaves
from rendezvous.protocol.records import PART, Record


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


def leave(nodes: FlappingNodes, incarnation: str, reason: str, to: Iterable[str]) -> list[Act]:
    """The launcher `incarnation` leaves as planned: have the launchers `to` remember it.

    It tells those that may lead next, as whoever leads may end before it can tell them; the leader
    tells all.
    """
    nodes.leave(incarnation, reason)
    word = PlannedLeaves(launchers=(incarnation,), reasons=(nodes.why_left(incarnation),))
    return [Envelope(name, NOBODY, word) for name in to if name != incarnation]


def left(told: LossNews, nodes: FlappingNodes, attempt: OwnAttempt) -> list[Record]:
    """The records of launchers of this attempt that are told to leave as planned, if that is news.

    Whoever leads may end before any other journal has its reason.
    """
    if not isinstance(told, PlannedLeaves):
        return []
    records = []
    for name, reason in zip(told.launchers, told.reasons, strict=False):
        member = attempt.nodes.get(name)
        if member is not None and reason and not nodes.why_left(name):
            record = member.lost(f"{member.name}: {reason}")
            records.append(replace(record, fields={**record.fields, PART: True}))
    return records


def why_gone(nodes: FlappingNodes, gone: Iterable[str], dead: Collection[str]) -> dict[str, str]:
    """The reasons why launchers take no part any more: their own where they left as planned."""
    return {
        name: nodes.why_left(name)
        or ("its launcher has ended" if name in dead else "its launcher was silent for too long")
        for name in gone
    }
