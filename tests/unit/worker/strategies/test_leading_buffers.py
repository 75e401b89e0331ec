"""Buffers of a lost rank 0, with what the script itself changes in them between transactions."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from recoverrun.worker.strategies.changed_buffers import CHANGED
from recoverrun.worker.strategies.leading_buffers import LeadingBuffers

SCRIPT, MEANS = 0, 1


class Module:
    """A model on rank 1: a buffer of the script's, and running means."""

    def __init__(self) -> None:
        self.modules_buffers = [torch.tensor([1.0, float("nan")]), torch.zeros(2)]

    def _assign_modules_buffers(self) -> None:
        pass

    def _sync_module_buffers(self, authoritative: int) -> None:
        """This rank is the one that has them."""


class Job:
    """Rank 1 has rank 0's buffers once that is lost."""

    def __init__(self) -> None:
        self.said: list[str] = []
        worker: Any = SimpleNamespace(
            env=SimpleNamespace(rank=1),
            guarantee=SimpleNamespace(weaken=self.said.append),
            view=SimpleNamespace(live_ranks=(1,)),
            left_buffers=SimpleNamespace(of=lambda rank, step: {}),
            step=1,
            protected=True,
        )
        self.module: Any = Module()
        self.buffers = LeadingBuffers(worker, (0, 1), 0)
        self.forward(1.0)
        self.buffers.commit(self.module, 1, {0: self.now(SCRIPT), 1: torch.tensor([5.0, 5.0])})

    def forward(self, mean: float) -> None:
        """A microbatch of this rank."""
        with self.buffers.led(self.module):
            pass
        self.module.modules_buffers[MEANS] += mean

    def now(self, at: int) -> Tensor:
        found: Tensor = self.module.modules_buffers[at]
        return found.clone()

    def taken(self) -> tuple[list[float], list[float]]:
        """The buffers with which the next forward begins."""
        with self.buffers.led(self.module):
            return self.now(SCRIPT).nan_to_num(-1).tolist(), self.now(MEANS).tolist()


def test_a_change_of_the_script_is_made_in_those_of_the_lost_rank_too() -> None:
    job = Job()
    job.module.modules_buffers[SCRIPT].mul_(0.5)

    assert job.taken() == ([0.5, -1.0], [5.0, 5.0])
    assert not job.said


def test_what_is_done_in_the_place_of_the_lost_rank_finds_the_change() -> None:
    job = Job()
    job.module.modules_buffers[SCRIPT].mul_(0.5)

    with job.buffers.as_first(job.module):
        assert job.now(SCRIPT).nan_to_num(-1).tolist() == [0.5, -1.0]
        assert job.now(MEANS).tolist() == [5.0, 5.0]
    assert job.now(MEANS).tolist() == [1.0, 1.0]
    job.module.modules_buffers[SCRIPT].mul_(0.5)

    assert job.taken() == ([0.25, -1.0], [5.0, 5.0])
    assert not job.said


@pytest.mark.parametrize("again", [False, True])
def test_a_change_of_values_that_ranks_had_otherwise_takes_the_promise_back(again: bool) -> None:
    job = Job()
    job.module.modules_buffers[MEANS].mul_(1.0 if again else 0.5)
    job.taken()

    assert job.said == ([] if again else [CHANGED.format(rank=0)])
