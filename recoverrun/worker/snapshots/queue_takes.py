"""Items that the script's own thread has taken from queues and connections.

What was put in by another thread or process is nowhere else once it is taken, so a process that
goes back cannot have it again. A queue into which the script only puts something, as for a thread
that writes logs, has no such state. Takes are counted by the methods of the classes.
"""

import functools
import multiprocessing.connection
import multiprocessing.queues
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

METHODS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (queue.Queue, ("get",)),
    (multiprocessing.queues.Queue, ("get",)),
    (multiprocessing.queues.SimpleQueue, ("get",)),
    (multiprocessing.connection._ConnectionBase, ("recv", "recv_bytes", "recv_bytes_into")),
)


class QueueTakes:
    """Counts from `watch` on."""

    kinds = tuple(kind for kind, _ in METHODS)

    def __init__(self) -> None:
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._watches = False

    def watch(self) -> None:
        if self._watches:
            return
        self._watches = True
        thread = threading.get_ident()
        for kind, names in METHODS:
            for name in names:
                setattr(kind, name, self._counted(getattr(kind, name), thread))

    def taken_from(self, one: Any) -> int:
        return self._taken.get(one, 0)

    def _counted(self, original: Callable[..., Any], thread: int) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(one: Any, *args: Any, **kwargs: Any) -> Any:
            item = original(one, *args, **kwargs)
            if threading.get_ident() == thread:
                self._taken[one] = self._taken.get(one, 0) + 1
            return item

        return wrapper


QUEUES = QueueTakes()
"""Of this process."""
