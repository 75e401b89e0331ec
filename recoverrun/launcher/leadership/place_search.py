"""A launcher that has no place in the job: where it calls, and what it makes of the answers."""

from recoverrun.launcher.leadership.coordinator_search import CoordinatorSearch
from recoverrun.launcher.leadership.node_agent import NodeAgent
from recoverrun.launcher.network.connections import Connections
from rendezvous.protocol.formation_messages import Redirect, Spare
from rendezvous.protocol.heartbeat import Heartbeat
from rendezvous.protocol.messages import Message


class PlaceSearch:
    """The search of one launcher, until it has a place."""

    def __init__(self, agent: NodeAgent, connections: Connections, heartbeat: Heartbeat) -> None:
        self._agent = agent
        self._connections = connections
        self._search = CoordinatorSearch(heartbeat)

    def hear(self, message: Message, now: float) -> bool:
        """The launcher where we wait has answered. True if that is for our agent, too."""
        self._search.heard(now)
        if isinstance(message, Redirect):
            self._connections.turn_to((message.host, message.port))
            return False
        if isinstance(message, Spare) and self._search.learn(message.places):
            self._agent.waiting.be_spare_elsewhere()
        return True

    def end(self, now: float) -> None:
        """We have a place."""
        self._search.end(now)

    def tick(self, now: float) -> None:
        """Time passed. Where nobody answers, others know who coordinates, or soon will."""
        for silent_s in self._search.tick(now):
            place = self._search.next_place(now)
            if place is not None:
                self._connections.turn_to(place)
            elif self._agent.local_workers is None:
                self._agent.waiting.lose_sight(silent_s)

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        return self._search.deadline()
