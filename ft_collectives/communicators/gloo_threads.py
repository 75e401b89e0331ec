"""The scheduling of gloo's event threads.

Each gloo device has a thread that waits for its sockets (`gloo_tcp_loop`). Where another thread
holds the lock of a connection, it does not block but polls the kernel again at once, for as long as
it may run (`Pair::handleEvents` in gloo/transport/tcp/pair.cc). On a machine with fewer cores than
busy threads it often preempts the very holder of that lock, and then keeps both from going on:
thousands of system calls for one small collective. Under SCHED_BATCH (sched(7)) a thread that wakes
does not preempt: it runs on an idle core at once, else when its turn comes. That needs no
privilege.
"""

import os
from pathlib import Path

NAME = "gloo_tcp_loop"

TASKS = "/proc/self/task"


def schedule_as_batch() -> None:
    """Schedule the event threads that this process has by now as SCHED_BATCH, on Linux."""
    if not hasattr(os, "SCHED_BATCH"):
        return
    for thread in _threads():
        try:
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:  # else somebody has chosen
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            continue  # it has ended, or a sandbox forbids it: slower, no less right


def _threads() -> list[int]:
    try:
        tasks = os.listdir(TASKS)
    except OSError:  # a system without /proc
        return []
    found = []
    for task in tasks:
        try:
            if Path(TASKS, task, "comm").read_text().strip() == NAME:
                found.append(int(task))
        except OSError:
            continue  # it has ended
    return found
