"""A launcher that has no place in the job: where it calls, and what it makes of the answers."""

from recoverrun.launcher.leadership.coordinator_search import CoordinatorSearch
from recoverrun.launcher.leadership.node_agent import NodeAgent
from recoverrun.launcher.network.connections import Connections
from recoverrun.launcher.network.frames import NOBODY
from recoverrun.launcher.network.job_fingerprint import is_same_job, running_message
from rendezvous.protocol.formation_messages import Redirect, Running, Spare
from rendezvous.protocol.heartbeat import HeartbeatTimes
from rendezvous.protocol.messages import Message


class PlaceSearch:
    """The search of one launcher, until it has a place."""

    def __init__(
        self, agent: NodeAgent, connections: Connections, heartbeat: HeartbeatTimes, nnodes: int
    ) -> None:
        self._agent = agent
        self._connections = connections
        self._search = CoordinatorSearch(heartbeat)
        self._nnodes = nnodes

    def running(self) -> Running:
        """The words of this launcher as the coordinator, for one that listens at the endpoint."""
        return running_message(self._agent.join_message(), self._nnodes)

    def hear(self, message: Message, now: float) -> bool:
        """The launcher where we wait has answered. True if that is for our agent, too."""
        self._search.heard(now)
        if isinstance(message, Redirect):
            if (uplink := self._connections.uplink) is not None:
                self._search.fall_back(uplink.place)
            self._connections.turn_to((message.host, message.port))
            return False
        if isinstance(message, Spare) and self._search.learn(message.places):
            self._agent.waiting.be_spare_elsewhere()
        return True

    def is_called(self, running: Running) -> bool:
        """True if it is our own job that runs, as its coordinator says: we ask that for a place."""
        if self._agent.local_workers is not None:
            return False
        if not is_same_job(running, self._agent.join_message(), self._nnodes):
            return False
        place = running.address, running.listen
        uplink = self._connections.uplink
        if uplink is None or uplink.place != place:
            self._agent.waiting.be_called(place)
        self._connections.turn_to(place)
        return True

    def refer(self, sender: str) -> None:
        """A launcher asks us for a place, where we wait for one ourselves."""
        if (uplink := self._connections.uplink) is not None:
            host, port = uplink.place
            self._connections.send(sender, NOBODY, Redirect(host=host, port=port))

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
