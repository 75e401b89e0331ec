"""The vote that ends a step: one small all-reduce over every live rank.

Only a rank that holds every bucket enters it, so whoever completes it knows that all members do.
The ballot counts identities, and the sum shows on the data plane what is in the step (INV-1).
"""

from collections.abc import Callable, Sequence

import torch

from ft_collectives.c10d import ReduceOp, options
from ft_collectives.fabric import Channel, Fabric
from ft_collectives.faults import Superseded


class Booth:
    """Votes of this rank among all live ranks."""

    def __init__(self, fabric: Fabric, channel: Channel) -> None:
        self._fabric = fabric
        self._channel = channel

    def count(
        self, generation: int, ballot: Sequence[int], on_launch: Callable[[], None]
    ) -> tuple[int, ...]:
        """The sum of all members' ballots. Superseded if `generation` ends first."""
        return self._sum(generation, ballot, ReduceOp.SUM, on_launch)

    def least(self, generation: int, value: int) -> int:
        """The least value of any member. Superseded if `generation` ends first."""
        return self._sum(generation, [value], ReduceOp.MIN, lambda: None)[0]

    def _sum(
        self,
        generation: int,
        ballot: Sequence[int],
        operation: object,
        on_launch: Callable[[], None],
    ) -> tuple[int, ...]:
        fabric, channel = self._fabric, self._channel
        if fabric.ready(channel) != generation:
            raise Superseded
        votes = torch.tensor(ballot, dtype=torch.int32)
        how = options("AllreduceOptions", reduceOp=operation)
        staged = [votes]
        fabric.bury(staged)
        pending = fabric.launch(channel, generation, lambda group: group.allreduce([votes], how))
        on_launch()
        fabric.finish([pending], generation)
        fabric.unbury(staged)
        return tuple(votes.tolist())
