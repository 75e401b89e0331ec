"""The vote that ends a step: every live rank sees the ballot of every other one.

Only a rank that holds every bucket enters it, so whoever completes it knows that all members do.
The ballot counts identities, and the sum shows on the data plane what is in the step (INV-1).
Ballots are gathered, not reduced: a ring does that in half the messages, and they are small.
"""

from collections.abc import Callable, Sequence

import torch

from ft_collectives.c10d import options
from ft_collectives.fabric import Channel, Fabric
from ft_collectives.faults import Superseded


class Booth:
    """Votes of this rank among all live ranks."""

    def __init__(self, fabric: Fabric, channel: Channel) -> None:
        self._fabric = fabric
        self._channel = channel
        self._how = options("AllgatherOptions")

    def count(
        self, generation: int, ballot: Sequence[int], on_launch: Callable[[], None]
    ) -> tuple[int, ...]:
        """The sum of all members' ballots. Superseded if `generation` ends first."""
        return tuple(self._gather(generation, ballot, on_launch).sum(dim=0).tolist())

    def least(self, generation: int, value: int) -> int:
        """The least value of any member. Superseded if `generation` ends first."""
        return int(self._gather(generation, [value], lambda: None).min())

    def _gather(
        self, generation: int, ballot: Sequence[int], on_launch: Callable[[], None]
    ) -> torch.Tensor:
        """All members' ballots, of shape (members, len(ballot))."""
        fabric, channel = self._fabric, self._channel
        now = fabric.meet(channel)
        if now.generation != generation:
            raise Superseded
        mine = torch.tensor([ballot], dtype=torch.int32)
        if now.group is None:
            on_launch()
            return mine
        ballots = mine.new_empty((len(now.members), len(ballot)))
        staged = [mine, ballots]
        fabric.bury(staged)
        pending = fabric.launch(
            channel, generation, lambda group: group._allgather_base(ballots, mine, self._how)
        )
        on_launch()
        fabric.finish([pending], generation)
        fabric.unbury(staged)
        return ballots
