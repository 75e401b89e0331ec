"""Messages about workers that stand still: where they stand, and what a look at them shows."""

from dataclasses import dataclass

STILL_S = 1.5
"""A worker whose last mark is older stands still; its launcher says so."""

FROZEN = "F"
"""The state of a process whose control group is frozen, beside the letters of /proc/PID/stat."""

REPLACED = "E"
"""The state of a worker that runs another program than its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """L -> C: a worker stands still, or moves again (then `age_ms` is below STILL_S).

    A mark of its page (`progress_page`); `age_ms` is how long ago it was made. `waits` tells
    whether the rest is meant: the operation `number` of a channel, in `generation`, among ranks
    (first, stride, count), and the time limit of the wait.
    """

    rank: int
    incarnation: int
    serial: int
    age_ms: int
    phase: int
    step: int
    index: int
    waits: bool
    channel: int = 0
    number: int = 0
    generation: int = 0
    limit_ms: int = 0
    ranks: tuple[int, int, int] = (0, 0, 0)
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect:
    """C -> L: look at these ranks; it is look number `look` of suspicion `hang`.

    `stacks`: have them show their stacks, too.
    """

    hang: int
    look: int
    ranks: tuple[int, ...]
    stacks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """L -> C: what the kernel says of a worker and of all processes that it started.

    `state` is the letter of its main thread in /proc, FROZEN if its control group is, REPLACED if
    it runs another program than the worker (`exec`), "" if there is no such process; `cpu_ms` the
    time that they have computed so far; `kernel` where in the kernel the main thread waits, or the
    name of that program.
    `stacks`: it was asked for its stack at the same time.
    """

    rank: int
    incarnation: int
    hang: int
    look: int
    stacks: bool
    serial: int
    state: str
    cpu_ms: int
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowStack:
    """L -> W: leave the stacks of all threads in the run directory, and say where the script is."""

    rank: int
    hang: int
    look: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """W -> C: where the script's thread is. It is not sent while that holds Python's lock.

    `digest` is the same for the same stack. `turns`: it goes round in a loop that calls nothing.
    `within`: its innermost frame is in torch's own communication, waiting for others. `debugged`:
    a debugger of Python's is in it, so a person is. `unread`: its standard output or error takes
    nothing more, as nobody reads it. `joined`: of each of its channels, how many operations it has
    begun in `generation`.
    """

    rank: int
    generation: int
    hang: int
    look: int
    digest: int
    frame: str
    turns: bool
    within: bool
    debugged: bool = False
    unread: bool = False
    joined: tuple[tuple[int, int], ...] = ()
