"""The launchers that one of them hears, knows to be dead, leaving, or asking to be let in."""

from collections.abc import Collection, Iterable

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import EVEN, Configuration
from rendezvous.protocol.heartbeat import heartbeat


class Peers:
    """All times are of the listener's own clock, in seconds."""

    def __init__(self, members: Iterable[str], now: float) -> None:
        self.heard_at: dict[str, float] = dict.fromkeys(members, now)
        self.silences: dict[str, float] = {}  # seconds, of those left out for nothing else
        self.dead: set[str] = set()
        self.parted: set[str] = set()
        self.admitted: list[str] = []
        self.awake_at = now  # since we stood still
        self.deaf_at = float("-inf")  # when too few of them were heard last
        self.witness, self.witness_at = "", float("-inf")
        self._now = self._look_at = now
        self.heartbeat = heartbeat(len(self.heard_at))

    def wake(self, now: float) -> bool:
        """Time passed. A long gap is our own standstill, and nobody else's silence: then True."""
        gap, self._now = now - self._now, now
        if gap <= self.heartbeat.deaf_s:
            return False
        self.heard_at = {node: at + gap for node, at in self.heard_at.items()}
        self.awake_at = now
        return True

    def hear(self, node: str) -> None:
        self.heard_at[node] = self._now

    def moved(self, nodes: Iterable[str], leader: str, own: str) -> bool:
        """Workers of `nodes` have finished a step with ours; True if `leader` still has us."""
        alive = {node for node in nodes if node in self.heard_at} - self.dead
        for node in alive:
            self.hear(node)
        return bool(alive) and leader in alive | {own}

    def admit(self, node: str) -> None:
        if node not in self.admitted:
            self.admitted.append(node)

    def enroll(self, members: Collection[str]) -> None:
        """These are the ones that count now."""
        known = self.dead | self.parted | set(members)
        self.silences = {n: self._now - at for n, at in self.heard_at.items() if n not in known}
        self.heard_at = {node: self.heard_at.get(node, self._now) for node in members}
        self.heartbeat, self._look_at = heartbeat(len(self.heard_at)), self._now
        self.admitted = [node for node in self.admitted if node not in self.heard_at]

    def begin(self, members: Iterable[str], lapsed: str) -> None:
        """We lead from now on. Only a leader is pinged: nobody had a reason to speak to us before.

        But for the leader whose lease has `lapsed`, "" if none.
        """
        heard_at = self.heard_at.get(lapsed, self._now)
        self.heard_at = dict.fromkeys(members, self._now)
        if lapsed:
            self.heard_at[lapsed] = min(heard_at, self._now - self.heartbeat.silent_s)
        self._look_at, self.deaf_at = self._now, float("-inf")

    def heard_lately(self, own: str, witness: str) -> set[str]:
        """Us, the members that we have heard within `DEAF_S`, and so the vote `witness`."""
        heard = self.heard_at.keys() - self.unheard(timeouts.DEAF_S)
        same = witness.partition("/")[0] == self.witness
        there = same and self._now - self.witness_at <= timeouts.DEAF_S
        return heard | {own} | ({witness} if there else set())

    def excuse_silence(self) -> None:
        """We lead and hear too few to decide anything: that is no silence of theirs."""
        self.deaf_at = self._now

    def absent(self, own: str) -> set[str]:
        """The launchers that the next configuration leaves out."""
        over = self.dead | self.parted
        gone = {node for node in over if node in self.heard_at or node in self.admitted}
        return (self._silent() | gone) - {own}

    def _silent(self) -> set[str]:
        # Asked with every message: nobody can be silent before the first one could have become so.
        if self._now < self._look_at or not self.heard_at:
            return set()
        limit_s = self.heartbeat.silent_s
        if self._now - self.deaf_at < limit_s:
            return set()
        silent = {node for node, at in self.heard_at.items() if self._now - at >= limit_s}
        self._look_at = self._now if silent else min(self.heard_at.values()) + limit_s
        return silent

    def see_witness(self, witness: str) -> None:
        """Note that this witness is there."""
        self.witness, self.witness_at = witness, self._now

    def witness_vote(self, present: str, own: str) -> str:
        """The vote of a witness in the next configuration, after `present`; "" if none is there.

        One witness may vote in many jobs: the name of whoever asked it first tells them apart.
        """
        if self._now - self.witness_at > timeouts.WITNESS_SILENT_S:
            return ""
        same = present.partition("/")[0] == self.witness
        return present if same else f"{self.witness}/{own}"

    def with_witness(self, configuration: Configuration, present: str, own: str) -> Configuration:
        """`configuration` with the vote that a witness has in it, where it has one."""
        even = len(configuration.members) in EVEN
        return (
            configuration._replace(witness=self.witness_vote(present, own))
            if even
            else configuration
        )

    def unheard(self, for_s: float) -> set[str]:
        """Members that have said nothing for so long."""
        return {node for node, at in self.heard_at.items() if self._now - at > for_s}
