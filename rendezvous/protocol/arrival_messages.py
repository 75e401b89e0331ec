"""Messages by which a lost replica comes back while the others train."""

from dataclasses import dataclass

REFUSE_RETURN = "return.refuse"
"""The event of a `Notice`: no fresh process of this script can take a lost rank's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAgain:
    """C -> L: start these ranks again: their replica was lost, and its processes are gone.

    All of them have the same `birth`. A launcher starts those that it hosts and that have ended,
    each birth once; what it does not host it remembers. `often`: so many starts of this replica
    within an hour, this one among them.
    """

    ranks: tuple[int, ...]
    birth: int
    often: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """W -> C: this process stands before the loop that its rank was lost in.

    Said each second until a view has the rank.
    """

    rank: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """C -> W: `ranks` are ready to take part. Vote for it in `generation`.

    Where the vote of a transaction counts all members, all stop at the top of the next one.
    """

    generation: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """W -> C: this rank stands at the top of transaction `step`, of which nothing is done.

    Said again until a newer view comes, in which it goes on.
    """

    rank: int
    generation: int
    step: int
