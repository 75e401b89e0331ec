"""Activities of a simulated process, as a look shows them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Activity:
    """`states` is one letter of /proc, or several by turns; `digest` 0: another one at each look.

    `shows`: its control thread can show a stack.
    """

    states: str
    cpu_ms_per_s: float
    digest: int = 0
    turns: bool = False
    within: bool = False
    shows: bool = True


COMPUTES = Activity("RRS", 900.0)
WAITS = Activity("S", 2.0, digest=1)
WITHIN = Activity("S", 2.0, digest=2, within=True)
"""In torch's own communication, which the page does not tell of."""

Stall = Literal["computes", "pool", "idle", "polls", "disk"]

STALLS: dict[Stall, Activity] = {
    "computes": COMPUTES,
    "pool": Activity("S", 900.0, digest=3),  # its threads or its children compute
    "idle": Activity("S", 1.0, digest=4),
    "polls": Activity("S", 5.0),  # sleeps, and looks at this and that in between
    "disk": Activity("D", 0.0, digest=5),
}
"""Of healthy ranks. "idle" alone looks like a hang."""

Hang = Literal["stopped", "lock", "turns", "calls", "kept", "kept busily", "disk"]

HANGS: dict[Hang, Activity] = {
    "stopped": Activity("T", 0.0, shows=False),
    "lock": Activity("S", 1.0, digest=6),
    "turns": Activity("R", 1000.0, digest=7, turns=True),
    "calls": Activity("R", 1000.0),
    "kept": Activity("S", 0.0, shows=False),  # Python's lock
    "kept busily": Activity("R", 1000.0, shows=False),
    "disk": Activity("D", 0.0, digest=8),
}

PROVED: frozenset[Hang] = frozenset({"stopped", "lock", "turns", "kept"})
"""The others are given ten times the limit."""
