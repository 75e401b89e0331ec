"""The interface that a job client needs of its agent."""

from typing import Protocol

from recoverrun.launcher.node.workers import LocalWorkers
from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.messages import Message


class Waits(Protocol):
    """Waits for a place in the job (`network.job_wait`)."""

    def be_spare_elsewhere(self) -> None:
        """The coordinator has changed while we wait as a spare: ask the new one."""

    def be_called(self, place: tuple[str, int]) -> None:
        """Our job runs already: it is joined at `place`, a host and a port."""

    def lose_sight(self, silent_s: float) -> None:
        """Nobody answers where we wait, nor anywhere else. Raises RecoverrunError as a spare."""


class NodeAgent(Protocol):
    """For whom it speaks: the agent of this node."""

    @property
    def waiting(self) -> Waits:
        """The wait of this node for a place in the job."""

    @property
    def local_workers(self) -> LocalWorkers | None:
        """The workers of this node, if there are any."""

    @property
    def node(self) -> str:
        """The name of this node."""

    def host(self) -> None:
        """The others come to this launcher."""

    def join_message(self) -> Join:
        """The request of this node for a place."""

    def take(self, rank: int, message: Message, now: float) -> None:
        """Take a message of the coordinator, for one worker of this node or for its launcher."""

    def cut_off(self, reason: str, now: float) -> None:
        """This node has no part in the job any more."""
