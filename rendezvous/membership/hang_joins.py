"""The operations that ranks wait in, and the ranks that have not joined them.

A rank that waits for operation n of a channel has joined all up to n: members begin them in the
same order. Of other channels its stack tells how many it has begun: one member may have completed
what another still waits for, where a connection has swallowed the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rendezvous.membership.hang_events import Still
from rendezvous.protocol.progress_page import spread

At = tuple[int, int, int]
"""An operation: channel, number, generation."""


@dataclass(slots=True)
class _Operation:
    waiting: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)  # members that wait, and have not joined this one


class Joins:
    """The joins of `waiting` ranks. Members that an operation does not tell of count as having
    joined it.
    """

    def __init__(self, waiting: Mapping[int, Still]) -> None:
        self._waiting = waiting
        self._at = {rank: _at(still) for rank, still in waiting.items()}
        self._operations: dict[At, _Operation] = {}
        for rank, at in self._at.items():
            known = self._operations.get(at)
            if known is None:
                ranks = spread(waiting[rank].mark.ranks) or range(0)
                late = {one for one in ranks if one in waiting and not self._joined(one, at)}
                known = self._operations[at] = _Operation(late=late)
            known.waiting.add(rank)

    @property
    def whole(self) -> set[int]:
        """Ranks in operations that all of their members among the waiting have joined.

        Others may wait for them elsewhere: only where there are none have all ranks parted.
        """
        found = (one.waiting for one in self._operations.values() if not one.late)
        return set[int]().union(*found)

    @property
    def crossed(self) -> bool:
        """True if some wait for each other, each in an operation that the other has not joined."""
        left = {at: {self._at[rank] for rank in one.late} for at, one in self._operations.items()}
        while free := [at for at, others in left.items() if not others & left.keys()]:
            for at in free:
                del left[at]
        return bool(left)

    def _joined(self, rank: int, at: At) -> bool:
        channel, number, generation = at
        own = self._at[rank]
        if own[0] == channel and own[2] == generation and own[1] >= number:
            return True
        stack = self._waiting[rank].looks.stack
        if stack is None or stack.generation != generation:
            return False
        return dict(stack.joined).get(channel, -1) >= number


def all_shown(waiting: Mapping[int, Still]) -> bool:
    """True if all have told what they have joined."""
    return all(still.looks.stack is not None for still in waiting.values())


def _at(still: Still) -> At:
    return still.mark.channel, still.mark.number, still.mark.generation
