"""Streams of a rank that draws privately, for tests."""

from typing import Any

import torch

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.rng.private_draws import PrivateDraws, forget_private
from recoverrun.worker.rng.streams import Streams, read_streams
from recoverrun.worker.tracking.rank0_gate import Rank0Gate
from rendezvous.protocol.progress_page import ProgressWriter
from tests.unit.contexts import at, draw


class Runtime:
    active = True
    acting_rank: int | None = None
    alone = 0
    seedings = 0

    def __init__(self, own_rank: int = 0) -> None:
        self.progress = ProgressWriter("")
        self.gate = Rank0Gate(own_rank)

    def seeding(self) -> None:
        self.seedings += 1


def by_itself(count: int, runtime: Any = None) -> None:
    with PrivateDraws(runtime or Runtime(), "train.py:5"):
        draw(count)


def stream(seed: int, shared: int, lonely: int = 0) -> Streams:
    """Seeded, and so many numbers drawn."""
    torch.manual_seed(seed)
    forget_private()
    by_itself(lonely)
    draw(shared)
    return read_streams()


def after(step: int, streams: Streams, **more: Any) -> Context:
    return at(step, kind="after", streams=streams, **more)
