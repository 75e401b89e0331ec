"""Snapshots that nobody has asked for are taken of a model on the CPU alone."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.worker.arrival import held_tensors
from recoverrun.worker.snapshots.pace import AutoPace, Pace
from recoverrun.worker.snapshots.taking import AWAY, Taker
from rendezvous.protocol.worker_env import IF_ALONE


class Keeper:
    """Makes memory of the size that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def reserve(self, nbytes: int, **_: object) -> Any:
        self.asked.append(nbytes)
        return SimpleNamespace(touch=lambda: None)


def prepared(every: str, device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Keeper]:
    """The reasons for taking none, and the keeper, where a model on `device` is about to train."""
    reasons: list[str] = []
    env = SimpleNamespace(snapshot_every=every, birth=0)
    worker = SimpleNamespace(env=env, take_no_snapshots=reasons.append)
    tensors = [torch.zeros(4, device="cpu"), torch.zeros(4, device=device)]
    monkeypatch.setattr(held_tensors, "frozen", lambda made: tensors)
    parts, keeper = SimpleNamespace(worker=worker, made=None), Keeper()
    pace: Pace = AutoPace(None, lambda step: 0)
    taker = Taker(
        cast(Any, parts), cast(Any, None), cast(Any, keeper), pace=pace, attempt=0,
        past=cast(Any, None),
    )  # fmt: skip
    taker._prepare()
    taker._copier.rest()
    return reasons, keeper


def test_a_model_that_is_not_on_the_cpu_takes_none_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons, keeper = prepared(IF_ALONE, "meta", monkeypatch)

    assert reasons == [AWAY.format("meta")]
    assert not keeper.asked


@pytest.mark.parametrize(("every", "device"), [(IF_ALONE, "cpu"), ("auto", "meta"), ("9", "meta")])
def test_memory_is_taken_for_a_model_on_the_cpu_and_where_somebody_asked(
    every: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons, keeper = prepared(every, device, monkeypatch)

    assert not reasons
    assert keeper.asked
