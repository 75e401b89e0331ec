"""Loops that have trained and are over, as a process finds them that comes later: it cannot train
as they did, so it passes them over and goes on with what they have left.
"""

from dataclasses import dataclass
from types import FrameType
from typing import Any

from recoverrun.worker.instrumentation import Loop

SILENT = (
    "the loop at {loop}, which has trained, was left by an error, "
    "or by `return` with more than figures"
)
BRANCHES = "the loop at {loop}, which has trained and is over, has an `else`"


RETURNED = "return"
"""The name of what a `return` in the loop has returned, among its variables: none has it."""


@dataclass(slots=True, eq=False)
class TrainedLoop:
    """A loop that has trained."""

    loop: Loop
    values: dict[str, Any] | None = None
    """Variables that it binds, once it has ended by itself, by `break` or by `return`: figures, and
    lists of them. All others are told by their names alone."""
    unlike: tuple[str, ...] = ()  # variables that it binds to anything else
    opened: int = 0  # iterators of loaders that the process had made by then

    @property
    def why_not_passed(self) -> str:
        """The reason why a process cannot pass it over, "" if it can."""
        words = SILENT if self.values is None else BRANCHES if self.loop.branches else ""
        return words.format(loop=self.loop.id)


def variables_of(loop: Loop, frame: FrameType) -> dict[str, Any]:
    """The variables that `loop` binds, as they are in its function and in its module."""
    names = loop.assigned | loop.targets | loop.tested
    local, module = frame.f_locals, frame.f_globals
    found = {name: local[name] for name in names if name in local}
    if local is not module:
        found |= {name: module[name] for name in names & loop.global_names if name in module}
        if isinstance(local, dict):
            local.clear()  # before 3.13 the frame keeps this dict, and the dict all that is in it
    return found
