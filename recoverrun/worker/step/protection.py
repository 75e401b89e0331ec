"""What there is in a worker once its gradients are protected."""

from dataclasses import dataclass

from ft_collectives.communicators.fabric import Channel, Fabric
from ft_collectives.step.machine import InStep
from ft_collectives.step.vote import Booth
from recoverrun.worker.step.strategy import Strategy
from rendezvous.protocol.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Made as the first transaction ends. Nothing in it is optional, so nobody asks again."""

    layout: Layout
    strategy: Strategy
    machine: InStep
    fabric: Fabric
    booth: Booth  # votes of all ranks
    peers: Channel  # the ranks that hold the same part of the model
