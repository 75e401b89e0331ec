"""The places in the script that broadcast, and what roots have sent there so far.

A process that takes a lost rank's place is told what its donor has heard: else it would know
nothing of what a root always sends, and end where others go on without that root.
"""

from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from ft_collectives.process_group.substitutes import CallSite
from recoverrun.worker import own_files

Stack = tuple[tuple[CodeType, int], ...]
"""Functions in execution and their lines, the innermost one first."""

Names = tuple[tuple[str, str, int], ...]
"""The frames of the script alone, comparable between processes: file, function and line."""


class CallSites:
    """Call sites by their whole stack, as a helper that broadcasts may be called from several."""

    def __init__(self) -> None:
        self._sites: dict[Stack, CallSite] = {}
        self._heard: dict[Names, Sequence[Any]] = {}  # of sites that others have come to first

    def at(self, caller: FrameType, kind: type[CallSite]) -> CallSite:
        stack = _stack(caller)
        if stack not in self._sites:
            site = self._sites[stack] = kind()
            if heard := self._heard.pop(_names(stack), ()):
                site.remember(*heard)
        return self._sites[stack]

    def read(self) -> list[list[Any]]:
        """The names of each place, and what is remembered there."""
        here = {_names(stack): site.memory() for stack, site in self._sites.items()}
        return [[names, *memory] for names, memory in {**self._heard, **here}.items()]

    def put(self, told: Sequence[Sequence[Any]]) -> None:
        """Take over what another rank has read."""
        for names, *memory in told:
            self._heard[tuple((file, name, line) for file, name, line in names)] = memory


def _names(stack: Stack) -> Names:
    return tuple(
        (code.co_filename, code.co_qualname, line)
        for code, line in stack
        if not own_files.has(code.co_filename) and not code.co_filename.startswith("<frozen")
    )


def _stack(frame: FrameType | None) -> Stack:
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)
