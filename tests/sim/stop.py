"""A simulated rank that stands at the top of a step, until a newer view comes."""

from collections.abc import Callable

from rendezvous.protocol.arrival_messages import Held
from tests.sim.coordinator_link import AGAIN_S, Wire


class Stop:
    """Of one rank."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire = wire
        self._rank = rank
        self._held: Callable[[], Held | None] | None = None

    def begin(self, held: Callable[[], Held | None]) -> None:
        """Stand still, and say so again and again, as long as `held` has it."""
        self._held = held
        self._say()

    def over(self) -> bool:
        """A newer view has come: True if the rank stood still, and now goes on."""
        stood, self._held = self._held is not None, None
        return stood

    def _say(self) -> None:
        held = None if self._held is None else self._held()
        if held is not None:
            self._wire.send(self._rank, held)
            self._wire.on(self._rank, AGAIN_S, self._say)
