"""The search of a launcher without a place: it waits at the coordinator, and asks elsewhere if that
does not answer.

A spare is told of other launchers of the job: they know who coordinates, or soon will.
"""

from collections import deque
from collections.abc import Iterable

from rendezvous.membership.failure_detector import Detector, Forget, Heard, Tick
from rendezvous.protocol.heartbeat import HeartbeatTimes

SOUGHT_MOST = 5
"""Silences after which a spare gives up: longer than it takes to agree on another coordinator."""

COORDINATOR = b"coordinator"

Place = tuple[str, int]
"""Host and port."""


class CoordinatorSearch:
    """The search of one launcher, until it has a place."""

    def __init__(self, heartbeat: HeartbeatTimes) -> None:
        self._detector = Detector(heartbeat)
        self._alternatives: deque[Place] = deque()
        self._sought = 0

    def heard(self, now: float) -> None:
        """The launcher where we wait has answered."""
        self._detector.step(Heard(COORDINATOR), now)

    def end(self, now: float) -> None:
        """We have a place."""
        self._detector.step(Forget(COORDINATOR), now)

    def learn(self, places: Iterable[Place]) -> bool:
        """Wait where we are, and ask at `places` later; True if that is after a search."""
        searched = self._sought > 0
        self._alternatives, self._sought = deque(places), 0
        return searched

    def fall_back(self, place: Place) -> None:
        """Ask at `place` again if the launcher to which it has sent us is silent, as one that is
        lost, and nowhere else is known.
        """
        if not self._alternatives:
            self._alternatives.append(place)

    def tick(self, now: float) -> list[float]:
        """Time passed; for how many seconds the launcher where we wait is silent, if it is."""
        return [silence.silent_s for silence in self._detector.step(Tick(), now)]

    def next_place(self, now: float) -> Place | None:
        """Return the place to ask at now, None if there is none or after too many."""
        if not self._alternatives or self._sought >= SOUGHT_MOST:
            return None
        self._sought += 1
        place = self._alternatives[0]
        self._alternatives.rotate(-1)
        self.heard(now)
        return place

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        return self._detector.deadline()
