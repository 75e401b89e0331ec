"""The vote that ends a step: one small collective over every live rank.

Only a rank that holds every bucket enters it, so whoever completes it knows that all members do.
The ballot counts identities, and the sum shows on the data plane what is in the step (INV-1).
Small ballots are gathered: a ring does that in half the messages of a reduction. Ballots have room
to spare, because ranks that disagree about the length of a step must still be able to find out:
gloo ends the process where the sizes of an operation differ.
"""

from collections.abc import Callable, Sequence

import torch

from ft_collectives.c10d import ReduceOp, options
from ft_collectives.fabric import Channel, Fabric
from ft_collectives.faults import Superseded

ROOM = 64
"""The length of a ballot is a multiple of this."""

GATHERED = 1 << 14
"""All ballots together are gathered up to this many numbers, and summed on their way beyond."""


class Booth:
    """Votes of this rank among all live ranks."""

    def __init__(self, fabric: Fabric, channel: Channel) -> None:
        self._fabric = fabric
        self._channel = channel

    @property
    def channel(self) -> Channel:
        """That of all live ranks; free between votes."""
        return self._channel

    def count(
        self, generation: int, ballot: Sequence[int], on_launch: Callable[[], None]
    ) -> tuple[int, ...]:
        """The sum of all members' ballots. Superseded if `generation` ends first."""
        padded = [*ballot, *[0] * (-len(ballot) % ROOM)]
        summed = self._together(generation, padded, ReduceOp.SUM, on_launch)
        return tuple(summed[: len(ballot)].tolist())

    def least(self, generation: int, value: int) -> int:
        """The least value of any member. Superseded if `generation` ends first."""
        return int(self._together(generation, [value], ReduceOp.MIN, lambda: None)[0])

    def _together(
        self,
        generation: int,
        ballot: Sequence[int],
        operation: object,
        on_launch: Callable[[], None],
    ) -> torch.Tensor:
        """What `operation`, a sum or the least, makes of all members' ballots."""
        fabric, channel = self._fabric, self._channel
        now = fabric.meet(channel)
        if now.generation != generation:
            raise Superseded
        mine = torch.tensor([ballot], dtype=torch.int32)
        if now.group is None:
            on_launch()
            return mine[0]
        gathered = len(now.members) * len(ballot) <= GATHERED
        ballots = mine.new_empty((len(now.members) if gathered else 0, len(ballot)))
        how = options("AllgatherOptions") if gathered else options(
            "AllreduceOptions", reduceOp=operation
        )
        staged = [mine, ballots]
        fabric.bury(staged)
        pending = fabric.launch(
            channel, generation,
            lambda group: group._allgather_base(ballots, mine, how) if gathered
            else group.allreduce([mine], how),
        )
        on_launch()
        fabric.finish([pending], generation)
        fabric.unbury(staged)
        if not gathered:
            return mine[0]
        return ballots.sum(dim=0) if operation == ReduceOp.SUM else ballots.amin(dim=0)
