"""Threads of ours, which the script does not see: it may join all threads before it ends, or count
them.
"""

import threading

from recoverrun.worker.patches.monkeypatch import replace

OURS = "recoverrun-"
"""The beginning of the names of all threads that we start beside the script."""


def hide_threads() -> None:
    """Leave ours out of `threading.enumerate` and of `threading.active_count`."""
    every = threading.enumerate

    def seen() -> list[threading.Thread]:
        return [thread for thread in every() if not thread.name.startswith(OURS)]

    replace(threading, "enumerate", lambda _: seen)
    replace(threading, "active_count", lambda _: lambda: len(seen()))
