"""Files that the script reads again after it has written them while it trains: a count that it
keeps in one, say.

No snapshot has them, so after a loss they are as the steps that are done again have left them. They
are seen as Python opens them, by code of the script's, perhaps by way of the standard library or of
numpy: what other libraries keep in files is a cache. What code in C opens by itself is not seen.
"""

import os
import stat
import sys
import threading
from collections.abc import Callable, Container
from pathlib import Path
from types import FrameType
from typing import Any

BETWEEN = frozenset({*sys.stdlib_module_names, "numpy"}) - {"__main__"}
"""Packages through which a script opens its files."""

MOST = 10_000
"""Of the paths that are remembered."""

READ_BACK = (
    "the script reads {} again, which it writes as it trains: no snapshot has it, "
    "and where all ranks go back it is as the lost steps have left it"
)


class FilesReadBack:
    """Those that the script's own thread opens, from `watch` on."""

    def __init__(self, own: Callable[[], Container[str]]) -> None:
        """`own` gives the names of the script's modules."""
        self._own = own
        self._written: set[str] = set()
        self._found = ""  # the first one
        self._told = self._watches = False

    def watch(self) -> None:
        """Called in the script's own thread."""
        if self._watches:
            return
        self._watches, thread = True, threading.get_ident()

        def hear(event: str, args: tuple[Any, ...]) -> None:
            if event == "open" and not self._found and threading.get_ident() == thread:
                path, _, flags = args
                if isinstance(path, (str, bytes)) and _is_of(self._own(), sys._getframe(1)):
                    self._opened(os.fsdecode(path), flags)

        sys.addaudithook(hear)  # the functions that open files stay the script's own

    def news(self) -> str:
        """A sentence about the first one, once; "" where there is none."""
        if self._told or not self._found:
            return ""
        self._told = True
        return READ_BACK.format(self._found)

    def _opened(self, path: str, flags: int) -> None:
        way = flags & os.O_ACCMODE
        at = str(Path(path).absolute())
        reads = way != os.O_WRONLY and not flags & os.O_APPEND
        if reads and at in self._written and _is_regular(at):
            self._found = path
        elif way != os.O_RDONLY and len(self._written) < MOST:
            self._written.add(at)


def _is_of(own: Container[str], frame: FrameType | None) -> bool:
    """True if code of the script's opens it."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in own:
            return True
        if name.partition(".")[0] not in BETWEEN:
            return False
        frame = frame.f_back
    return False


def _is_regular(path: str) -> bool:
    """True of a file that can be read again: anything else, such as a pipe, is read once."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
