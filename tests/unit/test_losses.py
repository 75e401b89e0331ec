"""What modules without parameters were made with, where ranks differ in it."""

from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.hooks import losses
from recoverrun.hooks.attached import Attached


class Weighing(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, rank]))
        self.register_buffer("same", torch.ones(2))
        self.inner = nn.SmoothL1Loss(beta=1.0 + rank)
        self.note = {"no": "state"}


def names(rank: int, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    held = {"weighing": Weighing(rank), "model": nn.Linear(2, 1), "rank": rank}
    held["model"].scale = rank
    return held, more


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> Attached:
    made = Attached()
    monkeypatch.setattr(losses, "ATTACHED", made)
    return made


def test_what_differs_belongs_to_a_rank_from_then_on(attached: Attached) -> None:
    mine, theirs = names(0), names(1)
    losses.hear(mine, [losses.words(mine), losses.words(theirs)])
    weighing = mine[0]["weighing"]

    assert attached.written(weighing) == {"weight"}
    assert attached.written(weighing.inner) == {"beta"}
    assert not attached.written(mine[0]["model"]), "it trains: its buffers follow what it sees"
    assert list(attached.names().values()) == [weighing, weighing.inner], "in one order"


def test_what_one_rank_has_not_is_nobody_s(attached: Attached) -> None:
    mine, theirs = names(0, more=nn.SmoothL1Loss(beta=0.5)), names(0)
    losses.hear(mine, [losses.words(mine), losses.words(theirs)])

    assert not attached.names()


def test_large_buffers_are_data(attached: Attached) -> None:
    mine, theirs = names(0), names(0)
    for number, (held, _) in enumerate((mine, theirs)):
        held["weighing"].same = torch.full((losses.SMALL_BYTES,), float(number))
    losses.hear(mine, [losses.words(mine), losses.words(theirs)])

    assert not attached.names()
