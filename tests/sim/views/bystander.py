"""A witness in a simulated history: a process that may die, and comes back as another one."""

from dataclasses import dataclass, field

from rendezvous.council import Council
from rendezvous.witness import Witness


@dataclass(slots=True)
class Bystander:
    place: int
    name: str
    alive: bool = True
    paused_until: float = 0.0
    votes: dict[str, Witness] = field(default_factory=dict)

    def hear(self, vote: str, message: Council) -> Council | None:
        """A message for its vote of that name; one of an earlier process is not its own."""
        if vote.partition("/")[0] != self.name:
            return None
        return self.votes.setdefault(vote, Witness()).hear(message)

    def begin_anew(self) -> None:
        name = f"n{self.place}.{int(self.name.rpartition('.')[2]) + 1}"
        self.name, self.alive = name, True
        self.votes.clear()
