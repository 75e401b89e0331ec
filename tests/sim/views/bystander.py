"""A witness in a simulated history: a process that may die, and comes back as another one."""

from dataclasses import dataclass, field
from typing import NamedTuple

from rendezvous.consensus.register_events import Admit, Heard, RegisterMessage, WitnessSeen
from rendezvous.consensus.witness import Witness
from tests.sim.views.book import Book


class Reply(NamedTuple):
    to: str
    event: object
    what: str  # for the coverage


@dataclass(slots=True)
class Bystander:
    place: int
    name: str
    alive: bool = True
    paused_until: float = 0.0
    votes: dict[str, Witness] = field(default_factory=dict)

    def receive(self, to: str, event: object, _now: float, book: Book) -> list[Reply]:
        """Something has come for its vote `to`; a launcher that asks whether it is there is one."""
        if isinstance(event, Admit):
            return [Reply(event.node, WitnessSeen(self.name), "witness: Attend")]
        answer = self.hear(to, event.message) if isinstance(event, Heard) else None
        if answer is None or not isinstance(event, Heard):
            return []
        book.sent(to, answer)
        return [Reply(event.sender, Heard(to, answer), f"witness: {type(answer).__name__}")]

    def crash(self) -> None:
        self.alive = False

    def hear(self, vote: str, message: RegisterMessage) -> RegisterMessage | None:
        """A message for its vote of that name; one of an earlier process is not its own."""
        if vote.partition("/")[0] != self.name:
            return None
        return self.votes.setdefault(vote, Witness()).hear(message)

    def begin_anew(self) -> None:
        name = f"n{self.place}.{int(self.name.rpartition('.')[2]) + 1}"
        self.name, self.alive = name, True
        self.votes.clear()
