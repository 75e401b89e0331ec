"""Pools of threads in a forked child, in which none of their threads is: a pool begins new ones.

    items = list(pool.map(load, rows))

The pool believes that its threads wait for work. What it had not begun yet its new threads do; what
one of its former threads was at is never done here.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

PARTS = frozenset({"_threads", "_work_queue", "_idle_semaphore", "_shutdown_lock"})


def renew() -> None:
    """Let all pools of `concurrent.futures` begin their threads anew."""
    module: Any = sys.modules["concurrent.futures.thread"]
    for pool in {id(one): one for one in map(_pool_of, list(module._threads_queues))}.values():
        if isinstance(pool, ThreadPoolExecutor) and vars(pool).keys() >= PARTS:
            _renew(pool)


def _pool_of(thread: threading.Thread) -> Any:
    """The pool of a thread, which holds it weakly; None if it is gone."""
    arguments: tuple[Any, ...] = vars(thread).get("_args", ())
    return arguments[0]() if arguments else None


def _renew(pool: Any) -> None:
    former, pool._work_queue = pool._work_queue, SimpleQueue()
    with suppress(Empty):
        while True:
            pool._work_queue.put(former.get_nowait())
    pool._threads, pool._idle_semaphore = set(), threading.Semaphore(0)
    pool._shutdown_lock = threading.Lock()
