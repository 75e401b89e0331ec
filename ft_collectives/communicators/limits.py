"""Time limits of waits for other ranks: the time-outs that the script has given to its groups.

As in torch, a limit holds for one operation. It is counted from where the script's thread begins to
wait, and anew when members change. After it the script's call raises an error, as under torch: no
rank is taken for lost, and a rank that ends by the error ends the run.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

SLACK = timedelta(seconds=60)
"""gloo gives up so much later than we do: its time-out would look like the end of a peer."""

LONGEST_S = threading.TIMEOUT_MAX
"""The longest wait that `threading` accepts."""

MOST_NAMED = 8

_BY_GLOO = re.compile(r"timed out waiting \d+ ?ms|application timeout", re.IGNORECASE)


class TimedOut(dist.DistBackendError):
    """Other ranks did not join a collective within the time limit of its group."""


def limit_of(group: Any) -> timedelta:
    """Return the time-out of `group`: what `init_process_group` or `new_group` got, or has since.

    Without a group it is torch's default (`torch.distributed.constants`).
    """
    if group is None:
        return dist.constants.default_pg_timeout
    backends = [group._get_backend(device) for device in group._device_types]
    limits: list[timedelta] = [one.options._timeout for one in backends]
    return max(limits, default=dist.constants.default_pg_timeout)


class TimeLimits:
    """The limits of one rank: that of the default group, and a grace that is added for a while."""

    def __init__(
        self,
        limit: Callable[[], timedelta],
        on_timeout: Callable[[int, str], None] = lambda generation, reason: None,
    ) -> None:
        """`limit` is asked at each wait: the script may change its own.

        `on_timeout` hears the generation and the reason before the error is raised.
        """
        self._limit = limit
        self._on_timeout = on_timeout
        self._grace_s = 0.0

    @property
    def longest(self) -> timedelta:
        """The time-out for gloo's groups, which must not give up before we do."""
        return self._limit() + SLACK

    @contextmanager
    def lengthened(self, grace_s: float) -> Iterator[None]:
        """Lengthen all limits by `grace_s`, for work that the script knows nothing of."""
        before, self._grace_s = self._grace_s, grace_s
        try:
            yield
        finally:
            self._grace_s = before

    def within_s(self, limit: Callable[[], timedelta] | None = None) -> float:
        """Return seconds to wait under `limit`, or that of the default group. 0 means no limit."""
        seconds = (limit or self._limit)().total_seconds() or LONGEST_S
        return min(seconds + self._grace_s, LONGEST_S)

    def end(
        self, generation: int, rank: int, what: str, waited_s: float, others: Sequence[int]
    ) -> TimedOut:
        """Return the error to raise, of which `on_timeout` hears first.

        `what` is the operation, `others` the ranks (global) that were waited for.
        """
        named = ", ".join(map(str, others[:MOST_NAMED])) + ", ..." * (len(others) > MOST_NAMED)
        reason = (
            f"[rank {rank}] {what} timed out: waited {1000 * waited_s:.0f} ms for one of ranks "
            f"{named} (the timeout of init_process_group or new_group)"
        )
        self._on_timeout(generation, reason)
        return TimedOut(reason)


def is_time(failure: str) -> bool:
    """True if `failure` is gloo's message for a time-out of its own."""
    return _BY_GLOO.search(failure) is not None
