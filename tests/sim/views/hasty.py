"""Shorter silences than real ones, in which rare orders of events are less rare.

What the rules of the register forbid does not depend on how long launchers wait for each other; how
often a random history comes near it does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from rendezvous.consensus import timeouts
from rendezvous.protocol import heartbeat
from rendezvous.protocol.heartbeat import HeartbeatTimes

SILENT_S, STAND_LEAST_S, DEAF_S = 2.0, 1.2, 1.2
UNOPPOSED_S = (timeouts.LEASE_S + STAND_LEAST_S) * (1 - timeouts.MARGIN)


@contextmanager
def hasty() -> Iterator[None]:
    with (
        mock.patch.object(heartbeat, "QUICK", HeartbeatTimes(beat_s=0.5, silent_s=SILENT_S)),
        mock.patch.object(timeouts, "CONTACT_S", SILENT_S * (1 - timeouts.MARGIN)),
        mock.patch.object(timeouts, "STAND_LEAST_S", STAND_LEAST_S),
        mock.patch.object(timeouts, "CONTACT_LEADING_S", STAND_LEAST_S * (1 - timeouts.MARGIN)),
        mock.patch.object(timeouts, "UNOPPOSED_S", UNOPPOSED_S),
        mock.patch.object(timeouts, "DEAF_S", DEAF_S),
        mock.patch.object(timeouts, "ALONE_S", 6.0),
        mock.patch.object(timeouts, "FENCE_S", 10.0),
    ):
        yield
