"""The farewell to launchers that asked for a place in a job that will not be.

A refusal that is unread as its connection ends is lost, and who asked would wait on. So whoever
refuses stays until nobody asks any more: those who wait ask again every moment until they have
heard.
"""

import time
from collections.abc import Callable

from recoverrun.launcher.network.connections import Connections, Word
from rendezvous.protocol.formation_messages import Join
from rendezvous.transport.station import Station

QUIET_S = 2.0
"""Longer by far than one that has not heard takes to ask again."""

WITHIN_S = 10.0
LOOK_S = 0.5


def see_off(
    station: Station, connections: Connections, hear: Callable[[Word, float], None]
) -> None:
    """Go on hearing what launchers say until none asks for a place, for WITHIN_S at most."""
    now = began = asked_at = time.monotonic()
    while now < min(asked_at + QUIET_S, began + WITHIN_S):
        ready = station.wait(LOOK_S)
        now = time.monotonic()
        for word in connections.read(ready, now):
            hear(word, now)
            asked_at = now if isinstance(word.message, Join) else asked_at
