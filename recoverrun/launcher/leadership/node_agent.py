"""What a job client needs of the agent for which it speaks."""

from typing import Protocol

from recoverrun.launcher.network.job_wait import JobWait
from recoverrun.launcher.node.workers import LocalWorkers
from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.messages import (
    Message,
)


class NodeAgent(Protocol):
    """For whom it speaks: the agent of this node."""

    @property
    def waiting(self) -> JobWait:
        """Its wait for a place in the job."""

    @property
    def local_workers(self) -> LocalWorkers | None:
        """The workers of this node, if there are any."""

    @property
    def node(self) -> str:
        """What this node is called."""

    def host(self) -> None:
        """The others come to this launcher."""

    def join_message(self) -> Join:
        """How this node asks for a place."""

    def take(self, rank: int, message: Message, now: float) -> None:
        """From the coordinator, for one worker of this node or for its launcher."""

    def cut_off(self, reason: str, now: float) -> None:
        """This node has no part in the job any more."""
