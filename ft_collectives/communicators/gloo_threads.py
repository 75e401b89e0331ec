"""gloo's event threads, and when they may take a core.

Each gloo device has a thread that waits for its sockets (`gloo_tcp_loop`). It does not wait for the
lock of a connection that another thread holds: it asks the kernel again at once, for as long as it
may run (`Pair::handleEvents` in gloo/transport/tcp/pair.cc). On a machine with fewer cores than
busy threads it often wakes just where the holder of that lock runs, takes its core away, and then
keeps both from going on, thousands of calls for one small collective. SCHED_BATCH is the kernel's
word for a thread that is never in such a hurry: it runs on any idle core at once, and else when its
turn comes. Nobody needs a privilege for that.
"""

import os
from pathlib import Path

NAME = "gloo_tcp_loop"


def calm() -> None:
    """Let the event threads that this process has by now wait for their turn, where Linux can."""
    if not hasattr(os, "SCHED_BATCH"):
        return
    for thread in _threads():
        try:
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:  # else somebody has chosen
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            continue  # it has ended, or a sandbox forbids it: slower, no less right


def _threads() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().strip() == NAME:
                found.append(int(task.name))
        except OSError:
            continue  # it has ended
    return found
