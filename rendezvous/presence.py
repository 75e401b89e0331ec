"""Which launchers one of them hears, knows to be dead, leaving, or asking to be let in."""

from collections.abc import Iterable

from rendezvous import pace


class Presence:
    """All times are of the listener's own clock, in seconds."""

    def __init__(self, members: Iterable[str], now: float) -> None:
        self.heard_at: dict[str, float] = dict.fromkeys(members, now)
        self.dead: set[str] = set()
        self.parted: set[str] = set()
        self.admitted: list[str] = []
        self.awake_at = now  # since we stood still
        self.witness, self.witness_at = "", float("-inf")
        self._now = now

    def wake(self, now: float) -> None:
        """Time passed. A long gap is our own standstill, and nobody else's silence."""
        gap, self._now = now - self._now, now
        if gap > pace.DEAF_S:
            self.heard_at = {node: at + gap for node, at in self.heard_at.items()}
            self.awake_at = now

    def hear(self, node: str) -> None:
        self.heard_at[node] = self._now

    def admit(self, node: str) -> None:
        if node not in self.admitted:
            self.admitted.append(node)

    def enroll(self, members: Iterable[str]) -> None:
        """These are the ones that count now."""
        self.heard_at = {node: self.heard_at.get(node, self._now) for node in members}
        self.admitted = [node for node in self.admitted if node not in self.heard_at]

    def begin(self, members: Iterable[str], lapsed: str) -> None:
        """We lead from now on. Only a leader is pinged: nobody had a reason to speak to us before.

        But for the leader whose lease has `lapsed`, "" if none.
        """
        self.heard_at = dict.fromkeys(members, self._now)
        if lapsed:
            self.heard_at[lapsed] = self._now - pace.SILENT_S

    def absent(self, own: str) -> set[str]:
        """Whom the next roll is without."""
        silent = {n for n, at in self.heard_at.items() if self._now - at >= pace.SILENT_S}
        return (silent | self.dead | self.parted) - {own}

    def attend(self, witness: str) -> None:
        """That witness is there."""
        self.witness, self.witness_at = witness, self._now

    def seconder(self, present: str, own: str) -> str:
        """The vote that a witness has in the next roll, after `present`; "" if none is there.

        One witness may vote in many jobs: the name of whoever asked it first tells them apart.
        """
        if self._now - self.witness_at > pace.WITNESS_SILENT_S:
            return ""
        same = present.partition("/")[0] == self.witness
        return present if same else f"{self.witness}/{own}"

    def unheard(self, for_s: float) -> set[str]:
        """Members that have said nothing for so long."""
        return {node for node, at in self.heard_at.items() if self._now - at > for_s}
