"""The fence (INV-5): messages of a generation that is over, or of a former process, have no effect.

Where a rank stands counts only in the present generation. Facts, such as an end or a committed
step, stay true in any, unless they are of a process that its rank had before the present one.
A process that is to take a lost rank's place is no member yet: it can say that it lives, that it is
ready and that it has ended, and nothing that concerns the others.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from rendezvous.coordinator.members import Membership
from rendezvous.protocol.arrival_messages import Held, Ready
from rendezvous.protocol.hang_messages import Evidence, Progress
from rendezvous.protocol.incarnations import birth_of
from rendezvous.protocol.messages import (
    ContextBuffer,
    Exited,
    Hello,
    Message,
    Notice,
    PeerFault,
    Report,
    Topology,
)

Say = Literal["heard", "answered", "dropped"]
"""The treatment of a message: it has its effect, or its sender is sent the view that it missed, or
nothing happens.
"""


class Fence:
    """The fence of one job. It sees every message before anything is done about it."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._newest: dict[int, int] = {}  # rank -> incarnation of its newest process
        self._ended: dict[int, int] = {}  # rank -> that of the newest that was reaped
        self._took_part: dict[int, int] = {}  # rank -> that of the newest that was a member again
        self._since: dict[int, int] = {}  # rank -> the generation since which it is a member again

    def judge(self, message: Message) -> Say:
        """The effect that this message may have; remembers which process speaks."""
        rank = getattr(message, "rank", None)
        if rank is None:
            return "heard"
        if rank not in self._members:
            return "dropped"
        match message:
            case Hello() | Ready() | Exited() | Progress() | Evidence():
                return "dropped" if self._is_former(message) else "heard"
            case ContextBuffer(incarnation=incarnation):
                return "heard" if self._left_by_member(rank, incarnation) else "dropped"
            case Report() | PeerFault() | Held():
                return self._stands(message)
        if self.comes(rank):
            return "heard" if isinstance(message, Notice) else self._newcomer(message)
        # Facts that were told before its rank came back are of the process before.
        past = getattr(message, "generation", 0) < self._since.get(rank, 0)
        return "dropped" if past else "heard"

    def comes(self, rank: int) -> bool:
        """True if the newest process of this rank was to take its place, and has not done so."""
        newest = self._newest.get(rank, 0)
        again = birth_of(newest) > 0 and newest != self._took_part.get(rank)
        return again and rank not in self._members.live_ranks

    def admit(self, ranks: Iterable[int], generation: int) -> None:
        """The newest processes of these ranks are members since `generation`."""
        for rank in ranks:
            self._since[rank] = max(generation, self._since.get(rank, 0))
            if rank in self._newest:
                self._took_part[rank] = self._newest[rank]

    def snapshot(self) -> Mapping[int, int]:
        """The newest process of each rank that was heard of."""
        return dict(self._newest)

    def _is_former(self, message: Hello | Ready | Exited | Progress | Evidence) -> bool:
        rank, incarnation = message.rank, message.incarnation
        if incarnation < self._newest.get(rank, 0) or incarnation <= self._ended.get(rank, -1):
            return True
        self._newest[rank] = incarnation
        if isinstance(message, Exited):
            self._ended[rank] = incarnation
        return False

    def _left_by_member(self, rank: int, incarnation: int) -> bool:
        """True if what a process has left is that of a member: it may come after its end."""
        took_part = self._took_part.get(rank, 0)
        member = not birth_of(incarnation) or incarnation == took_part
        return incarnation >= took_part and (member or rank in self._members.live_ranks)

    def _stands(self, message: Report | PeerFault | Held) -> Say:
        members = self._members
        if message.rank not in members.live_ranks or message.generation > members.generation:
            return "dropped"
        return "answered" if message.generation < members.generation else "heard"

    def _newcomer(self, message: Message) -> Say:
        return "answered" if isinstance(message, Topology) else "dropped"


def message_rank(message: Message) -> int:
    """The rank that a message speaks for, -1 if none."""
    rank = getattr(message, "rank", -1)
    return rank if isinstance(rank, int) else -1
