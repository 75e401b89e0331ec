"""The attempt in which a launcher has its place: who else has one, and what was said in it."""

from collections.abc import Collection, Iterable

from recoverrun.launcher.leadership.handover import statement
from recoverrun.launcher.leadership.launchers import Member, members_of
from rendezvous.coordinator.takeover import Memory, Vacancy
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import Statement


class OwnAttempt:
    """That of one launcher; without `start` it has no place yet."""

    def __init__(self) -> None:
        self.start: Start | None = None  # what we were told last
        self.nodes: dict[str, Member] = {}  # those of it
        self.memory = Memory()
        self.number = 0
        self._begun = False

    def join(self, start: Start) -> None:
        """Workers are about to be started here."""
        self.start, self.number, self._begun = start, start.attempt, True
        self.nodes = members_of(start)
        self.memory = Memory()

    def leave(self, following: int) -> None:
        """Our workers are being ended, for the attempt `following` to begin."""
        self.number, self._begun = following, False
        self.memory = Memory()

    def hosts(self, launcher: str, rank: int) -> bool:
        """True if that launcher hosts this rank."""
        node = self.nodes.get(launcher)
        return node is not None and rank in node.ranks

    def name(self, launcher: str) -> str:
        """What the node of that launcher is called."""
        member = self.nodes.get(launcher)
        return launcher[:8] if member is None else member.name

    def absent(self, members: Iterable[str]) -> set[str]:
        """The names of nodes that had a place and are not with `members`."""
        return {self.name(launcher) for launcher in self.nodes.keys() - set(members)}

    def statement(self, term: int) -> list[Statement]:
        """What this launcher remembers, in parts, for the coordinator of `term`."""
        return statement(self.memory, term=term, attempt=self.number, begun=self._begun)

    def vacancy(
        self, own: str, term: int, *, min_replicas: int, members: Collection[str], dead: set[str]
    ) -> Vacancy:
        """What the launcher `own` finds as the coordinator of `members`."""
        assert self.start is not None, "who never had a place has not begun"
        gone = ((name, node) for name, node in self.nodes.items() if name not in members)
        return Vacancy(
            term=term,
            world=tuple(range(self.start.world_size)),
            min_replicas=min_replicas,
            lost=tuple(
                (node.name, tuple(node.ranks), why_lost(name in dead)) for name, node in gone
            ),
            reason=f"{self.name(own)} coordinates now",
        )


def why_lost(dead: bool) -> str:
    """Why a launcher takes no part any more."""
    return "its launcher has ended" if dead else "its launcher was silent for too long"
