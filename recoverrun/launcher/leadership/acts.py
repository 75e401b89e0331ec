"""The acts that the leadership of one launcher orders."""

from collections.abc import Iterable
from dataclasses import dataclass

from recoverrun.launcher.network.frames import Envelope
from rendezvous.consensus.etcd_api import Call
from rendezvous.coordinator.standing import Standing, Vacancy
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Holding
from rendezvous.protocol.store_messages import StoreAnswer

HeldByLauncher = tuple[tuple[str, Holding], ...]
"""Launchers, and the snapshots of their nodes."""

Gone = Iterable[tuple[str, str]]
"""Launchers that take no part any more, and why."""

Silences = Iterable[tuple[str, float]]
"""Launchers that were left out for their silence, and its seconds."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """We are the coordinator now. `vacancy` is None where the job must begin again."""

    vacancy: Vacancy | None
    standings: tuple[Standing, ...]
    attempt: int
    early: tuple[tuple[str, Message], ...]  # (launcher, what it said to the new coordinator)
    held: HeldByLauncher


@dataclass(frozen=True, slots=True)
class Follow:
    """The launcher `leader` is about to coordinate."""

    leader: str


@dataclass(frozen=True, slots=True)
class Departed:
    """We coordinate, and these launchers do not take part any more: (launcher, why). These `came`
    to take part. `silent_s`: those that were silent, and for how long.
    """

    gone: tuple[tuple[str, str], ...]
    came: tuple[str, ...] = ()
    silent_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CutOff:
    """The job may go on elsewhere, and not here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Inquire:
    """Ask etcd about `job`; the answer is for the register (`Answered`), with this serial."""

    serial: int
    call: Call
    job: str


Act = Inquire | Envelope | StoreAnswer | Record | TakeOver | Follow | Departed | CutOff
