"""Snapshots that nobody has asked for are taken of a model on the CPU alone; memory comes first."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.worker.arrival import held_tensors
from recoverrun.worker.snapshots.copier import Copier
from recoverrun.worker.snapshots.memory_ahead import MemoryAhead
from recoverrun.worker.snapshots.pace import AutoPace, Pace
from recoverrun.worker.snapshots.taking import AWAY, TOGETHER_WITHIN, Taker
from rendezvous.bays.client import SnapshotMissed
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
        earlier_values=cast(Any, None),
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


@pytest.mark.parametrize("loops", [set[str](), {"train.py:5"}])
def test_a_script_that_trains_in_no_loop_has_none_and_says_so(loops: set[str]) -> None:
    reasons: list[str] = []
    runtime = SimpleNamespace(training_loops=loops, why_no_loop=lambda: "it is in no loop")
    env = SimpleNamespace(snapshot_every="5", birth=0)
    worker = SimpleNamespace(env=env, runtime=runtime, take_no_snapshots=reasons.append)
    parts, steps = SimpleNamespace(worker=worker), SimpleNamespace(updated=False)
    taker = Taker(
        cast(Any, parts), cast(Any, steps), cast(Any, Keeper()), pace=AutoPace(None, lambda _: 0),
        attempt=0, earlier_values=cast(Any, None),
    )  # fmt: skip

    for _ in range(TOGETHER_WITHIN - 1):
        taker.updated()
    assert steps.updated and not reasons
    taker.updated()
    taker.updated()

    assert reasons == ([] if loops else ["it is in no loop"])


def test_both_bays_are_made_ready_before_they_are_needed_and_each_once() -> None:
    keeper, copier = Keeper(), Copier()
    ahead = MemoryAhead(cast(Any, keeper), copier)

    ahead.begin(1000)
    for _ in range(3):
        ahead.follow(1200)
    copier.rest()

    assert keeper.asked == [1020, 1200]


def test_memory_that_is_not_there_ahead_is_no_error_before_it_is_needed() -> None:
    class Empty(Keeper):
        def reserve(self, nbytes: int, **_: object) -> Any:
            raise SnapshotMissed("there is none")

    copier = Copier()
    MemoryAhead(cast(Any, Empty()), copier).follow(1200)

    assert copier.rest()
