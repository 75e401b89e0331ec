"""Threads of the script that go on with their own work while its main thread executes for another
rank: one that fetches batches ahead, say. What they ask for is theirs.

A thread that waits in Python's own code alone, as one of a pool does, has no work: whatever it is
given to do meanwhile is a part of the execution, as is all that a thread does which begins in it.
"""

import os
import sys
import threading
from types import FrameType

from recoverrun.worker import own_files

_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (os.path.join(_PYTHON, "site-packages"), os.path.join(_PYTHON, "dist-packages"))


def busy_threads() -> frozenset[int]:
    """All threads but this one that are in code which is neither Python's nor ours: identities."""
    here = threading.get_ident()
    frames = sys._current_frames().items()
    return frozenset(ident for ident, frame in frames if ident != here and _works(frame))


def _works(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        if _is_elsewhere(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _is_elsewhere(name: str) -> bool:
    if name.startswith("<") or own_files.has(name):
        return False
    return not name.startswith(_PYTHON) or name.startswith(_PACKAGES)
