"""A simulated rank that stands at the top of a step: until a newer view has come, and its state is
packed.
"""

from collections.abc import Callable

from rendezvous.protocol.arrival_messages import Held
from tests.sim.coordinator_link import AGAIN_S, Wire


class Stop:
    """Of one rank. What it makes is for newcomers of the generation that follows, if any come."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire = wire
        self._rank = rank
        self._held: Callable[[], Held | None] | None = None
        self._go_on: Callable[[], None] = lambda: None
        self._making = 0  # the generation of newcomers for whom it packs its state, 0 if for none
        self._made = 0  # that of the newest packed state
        self._waits: dict[int, list[Callable[[], None]]] = {}  # by generation: who is to have it

    def begin(
        self, held: Callable[[], Held | None], generation: int, go_on: Callable[[], None]
    ) -> None:
        """Stand still, and say so again and again, as long as `held` has it; pack its state for
        newcomers of `generation`, if that is not 0. Then `go_on`.
        """
        self._held, self._go_on, self._making = held, go_on, generation
        self._say()
        if generation and self._wire.plan.packing_s:
            self._wire.on(self._rank, self._wire.plan.packing_s, self._done)
        else:
            self._done()

    def heard(self) -> None:
        """A newer view has come. Who stood still goes on, once its state is packed."""
        stood, self._held = self._held is not None, None
        if stood and not self._making:
            self._go_on()

    def when_made(self, generation: int, call: Callable[[], None]) -> None:
        """Call once the state for `generation` is packed: never if this rank ends before."""
        if self._made == generation:
            call()
        else:
            self._waits.setdefault(generation, []).append(call)

    def _done(self) -> None:
        self._made, self._making = self._making, 0
        for call in self._waits.pop(self._made, ()):
            call()
        if self._held is None:
            self._go_on()

    def _say(self) -> None:
        held = None if self._held is None else self._held()
        if held is not None:
            self._wire.send(self._rank, held)
            self._wire.on(self._rank, AGAIN_S, self._say)
