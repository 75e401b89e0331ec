"""The attempt in which a launcher has its place: who else has one, and what was said in it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.leadership.handover import statement
from recoverrun.launcher.leadership.launchers import Member, members_of
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import witness_of
from rendezvous.consensus.register_events import Moved
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.coordinator.standing import Memory, Vacancy
from rendezvous.membership.vacant_places import with_peer
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import Committed, Message
from rendezvous.protocol.register_messages import Statement

MOVED_EVERY_S = 0.25
"""So often at most the register is told that steps are finished."""


class OwnAttempt:
    """The attempt of one launcher; without `start` it has no place yet."""

    def __init__(self) -> None:
        self.start: Start | None = None  # what we were told last
        self.nodes: dict[str, Member] = {}  # those of it
        self.members: tuple[str, ...] = ()  # as the register has it
        self.memory = Memory()
        self.silent_s: dict[str, float] = {}  # for how long those left out for it were silent
        self.number = 0
        self._begun = False
        self._moved_at = float("-inf")  # when the register was told so last

    def join(self, start: Start) -> None:
        """Workers are about to be started here."""
        self.start, self.number, self._begun = start, start.attempt, True
        self.nodes = members_of(start)
        self.memory = Memory()
        self.silent_s = {}

    def learn(self, start: Start) -> list[str]:
        """Others have places of this attempt now; returns launchers that were not known."""
        if self.start is None or start.attempt != self.number or not self._begun:
            return []
        news = [peer[0] for peer in start.peers if peer[0] not in self.nodes]
        self.start = replace(self.start, nodes=start.nodes, peers=start.peers, asked=start.asked)
        self.nodes = members_of(self.start)
        return news

    def believe(self, sender: str, part: Statement) -> None:
        """A launcher that nobody has told us of says which place it has."""
        start = self.start
        if sender in self.nodes or start is None or not part.peer or part.peer[0][0] != sender:
            return
        known = 0 <= part.node_rank < len(start.peers)
        if known and start.peers[part.node_rank][3] == part.peer[0][3]:
            place, peer = part.node_rank, part.peer[0]
            self.learn(with_peer(start, place, peer, part.node, part.asked))

    @property
    def strangers(self) -> set[str]:
        """Launchers that take part, and whose place is not known."""
        return set(self.members) - self.nodes.keys() if self._begun else set()

    def leave(self, following: int) -> None:
        """Our workers are being ended, for the attempt `following` to begin."""
        self.number, self._begun = following, False
        self.memory = Memory()

    def hosts(self, launcher: str, rank: int) -> bool:
        """True if that launcher hosts this rank."""
        node = self.nodes.get(launcher)
        return node is not None and rank in node.ranks

    def moved(self, message: Message, own: str, now: float) -> Moved | None:
        """The proof of life of the other nodes in a step that a worker of the launcher `own` has
        finished.
        """
        if not isinstance(message, Committed) or now < self._moved_at + MOVED_EVERY_S:
            return None
        view = self.memory.view(message.generation)
        live = set(view.live_ranks) if view is not None else set()
        nodes = frozenset(name for name, node in self.nodes.items() if live & set(node.ranks))
        if not nodes - {own}:
            return None
        self._moved_at = now
        return Moved(nodes - {own})

    def name(self, launcher: str) -> str:
        """The name of that launcher's node."""
        member = self.nodes.get(launcher)
        return launcher[:8] if member is None else member.name

    def place(self, launcher: str) -> str:
        """The host and port at which others reach a launcher, "" where only the endpoint leads
        to it.
        """
        peers = self.start.peers if self.start is not None else ()
        places = {peer[0]: (peer[1], peer[2]) for peer in peers}
        host, port = places.get(launcher, ("", 0))
        return str(Endpoint(host=host, port=port)) if host and port else ""

    def absent(self, members: Iterable[str]) -> set[str]:
        """The names of nodes that had a place and are not with `members`."""
        return {self.name(launcher) for launcher in self.nodes.keys() - set(members)}

    def statement(self, term: int) -> list[Statement]:
        """The memory of this launcher, in parts, for the coordinator of `term`."""
        parts = statement(self.memory, term=term, attempt=self.number, begun=self._begun)
        start = self.start
        if start is None or not start.peers:
            return parts
        rank, peer = start.node_rank, (start.peers[start.node_rank],)
        asked = start.asked[rank] if start.asked else -1
        return [
            replace(part, node_rank=rank, node=start.nodes[rank], peer=peer, asked=asked)
            for part in parts
        ]

    def vacancy(
        self,
        own: str,
        term: int,
        *,
        policy: RecoveryPolicy,
        members: Collection[str],
        why: Mapping[str, str],
    ) -> Vacancy:
        """The state that the launcher `own` finds as the coordinator of `members`; `why` others
        take no part any more.
        """
        assert self.start is not None, "who never had a place has not begun"
        gone = [(name, node) for name, node in self.nodes.items() if name not in members]
        return Vacancy(
            term=term,
            world=tuple(range(self.start.world_size)),
            policy=policy,
            lost=tuple((node.name, tuple(node.ranks), why[name]) for name, node in gone),
            reason=f"{self.name(own)} coordinates now",
            silent_s={node.name: self.silent_s.get(name, 0.0) for name, node in gone},
        )


def first_configuration(start: Start, *, etcd: bool) -> Configuration:
    """That of the launchers that found the job, the leader first."""
    followers = (peer[0] for peer in start.peers if peer[0] != start.leader)
    witness = witness_of(start.leader) if etcd else ""
    return Configuration(1, 1, (start.leader, *followers), witness)
