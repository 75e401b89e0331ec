"""How long we wait for other ranks: as long as the script has told torch to wait in that group.

torch's limit holds for one operation, and so does ours, counted from where the script's thread
begins to wait; when members change, the wait begins anew. What comes then is an error of the
script's call, as torch's is: nobody is taken for lost, and who ends by it ends the run.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

SLACK = timedelta(seconds=60)
"""gloo gives up so much later than we do: what it says then would look like a peer's end."""

LONGEST_S = threading.TIMEOUT_MAX
"""Of what a thread can be told to wait."""

MOST_NAMED = 8

_BY_GLOO = re.compile(r"timed out waiting \d+ ?ms|application timeout", re.IGNORECASE)


class TimedOut(dist.DistBackendError):
    """Other ranks did not come to a collective within the limit of its group."""


def limit_of(group: Any) -> timedelta:
    """What the script gave to `init_process_group` or `new_group`, or has set since; torch's own
    where there is no group any more.
    """
    if group is None:
        return dist.constants.default_pg_timeout
    backends = [group._get_backend(device) for device in group._device_types]
    limits: list[timedelta] = [one.options._timeout for one in backends]
    return max(limits, default=dist.constants.default_pg_timeout)


class TimeLimits:
    """Of one rank: the limit of the default group, and what is added to any limit for a while."""

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
        """For gloo, which is not to give up before we do."""
        return self._limit() + SLACK

    @contextmanager
    def lenient(self, grace_s: float) -> Iterator[None]:
        """In here others may take so much longer, for what the script itself knows nothing of."""
        before, self._grace_s = self._grace_s, grace_s
        try:
            yield
        finally:
            self._grace_s = before

    def within_s(self, limit: Callable[[], timedelta] | None = None) -> float:
        """For a wait under `limit`, or under that of the default group. A limit of 0 is none."""
        seconds = (limit or self._limit)().total_seconds() or LONGEST_S
        return min(seconds + self._grace_s, LONGEST_S)

    def end(
        self, generation: int, rank: int, what: str, waited_s: float, others: Sequence[int]
    ) -> TimedOut:
        """The error to raise; whoever judges ends hears of it first."""
        named = ", ".join(map(str, others[:MOST_NAMED])) + ", ..." * (len(others) > MOST_NAMED)
        reason = (
            f"[rank {rank}] {what} timed out: waited {1000 * waited_s:.0f} ms for one of ranks "
            f"{named} (the timeout of init_process_group or new_group)"
        )
        self._on_timeout(generation, reason)
        return TimedOut(reason)


def is_time(failure: str) -> bool:
    """True if that is how gloo says that its own limit has passed."""
    return _BY_GLOO.search(failure) is not None
