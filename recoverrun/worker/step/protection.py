"""The parts of a worker once its gradients are protected."""

from dataclasses import dataclass

from ft_collectives.communicators.channel import Channel
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.step.machine import StepMachine
from ft_collectives.step.vote import VoteGroup
from recoverrun.worker.step.strategy import Strategy
from rendezvous.protocol.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Made as the first transaction ends. Nothing in it is optional, so nobody asks again."""

    layout: Layout
    strategy: Strategy
    machine: StepMachine
    fabric: Fabric
    vote_group: VoteGroup  # the channel on which all ranks vote
    peers: Channel  # the ranks that hold the same part of the model
    mates: Channel  # the ranks of this replica
