"""A simulated worker's link to the coordinator: what it says, some of it until it is answered."""

from typing import Protocol

from rendezvous.protocol.messages import (
    Broken,
    Farewell,
    Hello,
    Message,
    PeerFault,
    Topology,
    Verdict,
)
from rendezvous.protocol.views import View
from tests.sim.plan import Plan
from tests.sim.plane import Key

AGAIN_S = 0.5
"""What a worker says again until it is answered: hello, topology, a failed collective."""

SAID_TIMES, SAID_AGAIN_S = 3, 0.05
"""What a link does that repeats what was lost."""


class Wire(Protocol):
    """The services of the simulation that a link needs."""

    plan: Plan

    def on(self, rank: int, delay_s: float, call: object, *args: object) -> None: ...
    def send(self, rank: int, message: Message) -> None: ...
    def introduced(self, topology: Topology) -> None: ...


class CoordinatorLink:
    """That of one rank; `view` is the newest one heard."""

    def __init__(self, wire: Wire, rank: int, incarnation: int) -> None:
        self.view: View | None = None
        self._wire = wire
        self._rank = rank
        self._incarnation = incarnation
        self._topology_known = False
        self._ended = False  # the script
        self._fault_in = 0  # the generation in which a collective failed here

    @property
    def generation(self) -> int:
        """That of the newest view, 0 before the first."""
        return self.view.generation if self.view is not None else 0

    def hear(self, view: View) -> bool:
        """Keep a view; return True if it is newer than what was known."""
        self._topology_known |= bool(view.live)
        newer = view.generation > self.generation
        if newer:
            self.view = view
        return newer

    # --------------------------------------------------------------------------- beginning

    def greet(self) -> None:
        if self.view is None:
            self.send(Hello(rank=self._rank, incarnation=self._incarnation, pid=1, torch="sim"))
            self._after(AGAIN_S, self.greet)

    def introduce(self) -> None:
        """Say the topology until a view shows that it is known."""
        topology = Topology(
            rank=self._rank,
            generation=self.generation,
            strategy="sim",
            replicas=self._wire.plan.layout,
        )
        self._wire.introduced(topology)
        if not self._topology_known:
            self.send(topology)
            self._after(AGAIN_S, self.introduce)

    def promise(self, times: int = SAID_TIMES) -> None:
        """Say it over a link on which hardly anything is lost."""
        verdict = Verdict(
            rank=self._rank, generation=self.generation, promise="exact-samples", microbatches=1,
            reason="proved",
        )  # fmt: skip
        self.send(verdict)
        if times > 1 and not self._ended:
            self._after(SAID_AGAIN_S, self.promise, times - 1)

    def await_restart(self) -> None:
        """Say again and again that not all could begin."""
        self._hint(self.generation, "lost before all agreed")
        self._after(AGAIN_S, self.await_restart)

    # --------------------------------------------------------------------------- failing

    def blame(self, key: Key) -> None:
        """Say that a collective failed, unless that is known of this generation."""
        if key.generation == self.generation and self._fault_in < key.generation:
            self._fault_in = key.generation
            self._complain(key)

    def _complain(self, key: Key) -> None:
        if self.generation == key.generation and not self._ended:
            self._hint(key.generation, f"{key.kind} failed")
            self._after(AGAIN_S, self._complain, key)

    def _hint(self, generation: int, reason: str) -> None:
        self.send(PeerFault(rank=self._rank, generation=generation, reason=reason))

    def report_broken(self, generation: int, invariant: str, reason: str) -> None:
        self.send(
            Broken(rank=self._rank, generation=generation, invariant=invariant, reason=reason)
        )

    # --------------------------------------------------------------------------- ending

    def end(self) -> None:
        """The script has ended: what it promised and complained of is not said again."""
        self._ended = True

    def part(self, generation: int, step: int, passed_by: str) -> None:
        self.send(Farewell(rank=self._rank, generation=generation, step=step, passed_by=passed_by))

    def send(self, message: Message) -> None:
        self._wire.send(self._rank, message)

    def _after(self, delay_s: float, call: object, *args: object) -> None:
        self._wire.on(self._rank, delay_s, call, *args)
