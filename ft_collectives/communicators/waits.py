"""Waits of the script's thread for other ranks: how long each may last, and that it is seen.

While a rank waits, its page of progress says in which operation of which channel; so those who have
not joined it can be told from those who have (`rendezvous.membership.standstill`).
"""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ft_collectives.communicators.channel import Channel
from ft_collectives.communicators.limits import TimedOut, TimeLimits
from rendezvous.protocol.progress_page import NO_LIMIT_MS, ProgressWriter, Wait, key_of
from rendezvous.protocol.views import View

EVERYBODY = (0, 0, 0)
"""Members that are not told: all may be waited for."""


class Waits:
    """The waits of one `rank`; `view` returns the present members, `channels` are all its own."""

    def __init__(
        self,
        rank: int,
        limits: TimeLimits,
        view: Callable[[], View],
        progress: ProgressWriter,
        channels: Sequence[Channel],
    ) -> None:
        self._rank = rank
        self._limits = limits
        self._view = view
        self._progress = progress
        self._channels = channels

    def joined(self) -> tuple[tuple[int, int], ...]:
        """Return each channel's key, and how many operations it has begun in this generation.

        May be called from any thread, and while a communicator is replaced: it is then too high.
        """
        generation = self._view().generation
        return tuple(
            (channel.key, channel.begun if channel.generation == generation else 0)
            for channel in tuple(self._channels)
        )

    def within_s(self, channel: Channel | None) -> float:
        """The time limit of a wait on `channel`; on none, that of the default group."""
        return self._limits.within_s(channel.limit if channel is not None else None)

    def on(self, channel: Channel | None, number: int, what: str = "") -> "_Waiting":
        """Around a wait for operation `number` of `channel`, or for `what`; gives its limit (s)."""
        within_s = self.within_s(channel)
        limit_ms = min(int(1000 * within_s), NO_LIMIT_MS)
        generation = self._view().generation
        if channel is None:
            wait = Wait(key_of(what), number, generation, limit_ms, EVERYBODY, what)
        else:
            words = channel.what or channel.name
            wait = Wait(channel.key, number, generation, limit_ms, channel.span, words)
        return _Waiting(self._progress, wait, within_s)

    def overdue(self, channel: Channel | None, what: str = "") -> TimedOut:
        """The error of a wait that lasted too long."""
        view = self._view()
        ranks = channel.ranks if channel is not None else view.live_ranks
        what = what or (channel.what or channel.name if channel is not None else "")
        others = [rank for rank in ranks if rank != self._rank]
        within_s = self.within_s(channel)
        return self._limits.end(view.generation, self._rank, what, within_s, others)

    def until_ready(
        self, changed: threading.Condition, ready: Callable[[], bool], what: str
    ) -> None:
        """Wait, with `changed` held, until `ready()`; others bring that about. Raises TimedOut."""
        if ready():
            return
        with self.on(None, 0, what) as within_s:
            over = changed.wait_for(ready, timeout=within_s)
        if not over:
            raise self.overdue(None, what)


class _Waiting:
    """A class, not a generator under `contextmanager`: it is entered several times a step."""

    __slots__ = ("_progress", "_wait", "_within_s")

    def __init__(self, progress: ProgressWriter, wait: Wait, within_s: float) -> None:
        self._progress = progress
        self._wait = wait
        self._within_s = within_s

    def __enter__(self) -> float:
        self._progress.waits(self._wait)
        return self._within_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.goes_on()
