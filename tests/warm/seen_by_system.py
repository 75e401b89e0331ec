"""Command line and environment of a forked process, as /proc tells them.

The kernel shows the memory where they lay when the program was started. Room is made for later: the
template is started with more than it needs, and a fork writes over it.
"""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path


class SeenBySystem:
    def __init__(self) -> None:
        text = Path("/proc/self/stat").read_text()
        fields = text.rpartition(")")[2].split()
        # proc(5): arg_start, arg_end, env_start, env_end are fields 48 to 51 from one.
        numbers = [int(one) for one in fields[45:49]]
        self._arguments = (numbers[0], numbers[1] - numbers[0])
        self._environ = (numbers[2], numbers[3] - numbers[2])

    def show(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Have /proc say so from now on, as far as there is room."""
        pairs = [f"{name}={value}" for name, value in environ.items()]
        for (start, room), texts in ((self._arguments, command), (self._environ, pairs)):
            data = b"".join(text.encode(errors="surrogateescape") + b"\0" for text in texts)
            ctypes.memmove(start, data[:room].ljust(room, b"\0"), room)
