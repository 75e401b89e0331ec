"""A launcher of a simulated history of the view register."""

from dataclasses import dataclass, field
from typing import Protocol

from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_register import LeasedRegister
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import Event
from tests.sim.views.book import Held


@dataclass(slots=True)
class Node:
    """A launcher. `state` and `begun` are of its replica, which outlives an eviction."""

    name: str
    place: int
    rate: float
    register: Register | LeasedRegister
    state: Held = (0, "")
    begun: int = 0  # the configuration that its replica works in
    alive: bool = True
    leaving: bool = False
    paused_until: float = 0.0
    wake_at: float = float("inf")
    waiting: list[Event] = field(default_factory=list)

    @property
    def certain(self) -> bool:
        """True if it would go on, should all others die at this moment."""
        register = self.register
        if not isinstance(register, Register) or not self.alive or self.leaving:
            return False
        return register.proved_deaths.known


class Companion(Protocol):
    """Something that lives beside the registers and is led by what they decide."""

    def enrolled(self, node: Node, configuration: Configuration) -> None: ...
    def hear(self, node: Node, event: object) -> None: ...
    def settled(self, node: Node) -> bool: ...
