"""Objects of the script are known in the order in which it made them."""

import gc

import pytest
import torch

from recoverrun.worker.context import made_objects
from recoverrun.worker.context.made_objects import MadeObjects


class Base:
    pass


class Scheduler(Base):
    def __init__(self, lr: float) -> None:
        self.lr = lr


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> MadeObjects:
    class Kind(Base):
        pass

    monkeypatch.setattr(made_objects, "KINDS", {"schedulers": lambda: Base})
    objects = MadeObjects()
    objects.watch()
    yield objects
    del Base.__new__


def test_in_the_order_in_which_they_were_made(made: MadeObjects) -> None:
    one, two = Scheduler(0.1), Scheduler(lr=0.2)

    assert made.of("schedulers") == [one, two]
    assert [one.lr, two.lr] == [0.1, 0.2]


def test_what_the_script_has_dropped_is_none_of_them(made: MadeObjects) -> None:
    one, two = Scheduler(0.1), Scheduler(0.2)
    del one
    gc.collect()

    assert made.of("schedulers") == [two]


def test_an_optimizer_is_one_however_often_it_gets_parameters(made: MadeObjects) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)

    made.note_optimizer(optimizer)
    made.note_optimizer(optimizer)

    assert made.of("optimizers") == [optimizer]
