"""The values that the body of an outer loop finds in a fresh process."""

import sys
from io import StringIO
from types import SimpleNamespace
from typing import Any

from recoverrun.worker.arrival import passed_bodies
from recoverrun.worker.context.module_data import ModuleData


def never(*_: Any) -> Any:
    raise AssertionError("no iterator is told")


def test_attributes_are_the_survivors_but_for_objects_of_this_rank_alone() -> None:
    trainer = SimpleNamespace(log=StringIO(), best=0.5, step=0)
    told = [[["trainer", "log"], None], [["trainer", "best"], None], [["trainer", "step"], 7]]

    passed_bodies.put([[], [], told], sys._getframe(), never, ModuleData())

    assert isinstance(trainer.log, StringIO)
    assert (trainer.best, trainer.step) == (None, 7)


def test_a_sampler_carries_the_rank_of_this_process() -> None:
    sampler = SimpleNamespace(rank=0, epoch=0)
    told = [[["sampler", "rank"], 1], [["sampler", "epoch"], 2]]

    passed_bodies.put([[], [], told], sys._getframe(), never, ModuleData())

    assert (sampler.rank, sampler.epoch) == (0, 2)
