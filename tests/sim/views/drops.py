"""Messages of a simulated history that are lost on purpose: the next so many of a kind."""

from rendezvous.consensus.register_events import Heard
from tests.sim.views.plan import Fault


class Drops:
    def __init__(self) -> None:
        self._left: list[tuple[Fault, tuple[int, ...], list[int]]] = []

    def add(self, fault: Fault, places: tuple[int, ...]) -> None:
        """Lose what `fault` says, from `places`."""
        self._left.append((fault, places, [fault.count]))

    def clear(self) -> None:
        self._left.clear()

    def take(self, place: int, event: object) -> bool:
        """True if this event from `place` is lost."""
        kind = type(event.message).__name__ if isinstance(event, Heard) else ""
        # Both tell of a configuration, in full or in short.
        kind = kind.replace("ConfigurationChange", "NewConfiguration")
        for fault, places, left in self._left:
            if kind == fault.what and place in places and left[0] > 0:
                left[0] -= 1
                return True
        return False
