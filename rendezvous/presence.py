"""When each member of a roll was heard last, as its leader knows it.

Asked with every message, so nothing here may cost as much as there are members: who could have
become silent is looked up only when the first of them could have.
"""

from collections.abc import Iterable

from rendezvous.pace import Pace, pace


class Presence:
    """Of the members of one roll after another, on one launcher's monotonic clock."""

    def __init__(self, members: Iterable[str], now: float) -> None:
        self._heard_at = dict.fromkeys(members, now)
        self._look_at = now

    @property
    def pace(self) -> Pace:
        """The rhythm of as many launchers as there are members."""
        return pace(len(self._heard_at))

    def __contains__(self, node: str) -> bool:
        return node in self._heard_at

    def hear(self, node: str, now: float) -> None:
        """A sign of life; strangers may become members, and are not remembered until they are."""
        if node in self._heard_at:
            self._heard_at[node] = now

    def forgive(self, gap_s: float) -> None:
        """We stood still for so long ourselves, and heard nobody."""
        self._heard_at = {node: at + gap_s for node, at in self._heard_at.items()}

    def enrol(self, members: Iterable[str], now: float) -> None:
        """There is another roll. Who is new in it has been heard now."""
        self._heard_at = {node: self._heard_at.get(node, now) for node in members}
        self._look_at = now

    def begin(self, members: Iterable[str], suspect: str, now: float) -> None:
        """Only a leader is spoken to: forget what we heard before we were one.

        `suspect`, who led until now, counts as silent.
        """
        self._heard_at = dict.fromkeys(members, now)
        if suspect:
            self._heard_at[suspect] = now - self.pace.silent_s
        self._look_at = now

    def silent(self, now: float) -> set[str]:
        """Members that have said nothing for longer than the pace allows."""
        if now < self._look_at or not self._heard_at:
            return set()
        limit_s = self.pace.silent_s
        found = {node for node, at in self._heard_at.items() if now - at >= limit_s}
        self._look_at = now if found else min(self._heard_at.values()) + limit_s
        return found
