"""The failure detector: a launcher silent for longer than the `heartbeat` allows is lost.

Every message counts as a sign of life. A process that was itself stopped (SIGSTOP, a paused virtual
machine) heard nobody while it stood still, and must not blame the others for that: time that this
machine was not asked about counts for nobody.
"""

from dataclasses import dataclass
from typing import assert_never

from rendezvous.protocol.heartbeat import QUICK, HeartbeatTimes


@dataclass(frozen=True, slots=True)
class Heard:
    """A message came from `peer`; the first one begins the watch over it."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """`peer` left as it should."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Heard | Forget | Tick


@dataclass(frozen=True, slots=True)
class Silent:
    """`peer` is lost; it is not watched any more."""

    peer: bytes
    silent_s: float


class Detector:
    """Machine: signs of life in, losses out."""

    def __init__(self, heartbeat: HeartbeatTimes = QUICK) -> None:
        self._heartbeat = heartbeat
        self._heard_at: dict[bytes, float] = {}
        self._newest_at = float("-inf")  # of those
        self._look_at = float("-inf")  # nobody can be silent before
        self._asked_at: float | None = None

    def step(self, event: Event, now: float) -> list[Silent]:
        """Take one event at monotonic time `now` (seconds)."""
        self._forgive(now)
        silent: list[Silent] = []
        match event:
            case Heard(peer=peer):
                self._heard_at[peer] = self._newest_at = now
            case Forget(peer=peer):
                self._heard_at.pop(peer, None)
            case Tick():
                silent = self._expire(now)
            case _:
                assert_never(event)
        self.check()
        return silent

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        heard_at = self._heard_at.values()
        return min(heard_at) + self._heartbeat.silent_s if heard_at else None

    def check(self) -> None:
        asked_at, newest_at = self._asked_at, self._newest_at
        assert asked_at is None or newest_at <= asked_at, f"heard at {newest_at} after {asked_at}"

    def snapshot(self) -> dict[str, object]:
        return {"watched": sorted(peer.decode("ascii", "replace") for peer in self._heard_at)}

    def _forgive(self, now: float) -> None:
        gap = 0.0 if self._asked_at is None else now - self._asked_at
        if gap > self._heartbeat.deaf_s:
            self._heard_at = {peer: at + gap for peer, at in self._heard_at.items()}
            self._newest_at += gap
        self._asked_at = now

    def _expire(self, now: float) -> list[Silent]:
        # Time passes with every message of thousands: nobody is looked for before it can be time.
        if now < self._look_at:
            return []
        silent = [
            Silent(peer, now - heard_at)
            for peer, heard_at in sorted(self._heard_at.items())
            if now - heard_at >= self._heartbeat.silent_s
        ]
        for loss in silent:
            del self._heard_at[loss.peer]
        heard_at = self._heard_at.values()
        self._look_at = min(heard_at, default=now) + self._heartbeat.silent_s
        return silent
