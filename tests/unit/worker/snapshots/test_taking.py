"""Snapshots that nobody has asked for are taken of a model on the CPU alone; memory comes first."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recoverrun.worker.arrival import held_tensors
from recoverrun.worker.snapshots import taking
from recoverrun.worker.snapshots.begun_snapshot import BegunSnapshot
from recoverrun.worker.snapshots.copier import CopyThread
from recoverrun.worker.snapshots.memory_ahead import MemoryAhead
from recoverrun.worker.snapshots.pace import AutoPace, FixedPace, Pace
from recoverrun.worker.snapshots.piece_layout import Layouts
from recoverrun.worker.snapshots.piece_table import RankImage
from recoverrun.worker.snapshots.taking import AWAY, Taker, unserved
from recoverrun.worker.snapshots.unchanged_tensors import SMALL_BYTES, UnchangedTensors
from rendezvous.bays.client import SnapshotMissed
from rendezvous.protocol.worker_env import UNASKED
from rendezvous.snapshots.identity import SnapshotId


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
        earlier_values=cast(Any, None), uncounted=cast(Any, None),
    )  # fmt: skip
    taker._prepare()
    taker._copier.rest()
    return reasons, keeper


def test_a_model_that_is_not_on_the_cpu_takes_none_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons, keeper = prepared(UNASKED, "meta", monkeypatch)

    assert reasons == [AWAY.format("meta")]
    assert not keeper.asked


@pytest.mark.parametrize("uses", [True, False])
def test_before_there_is_an_optimizer_a_process_that_uses_a_gpu_trains_there(
    uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_tensors, "frozen", lambda made: [])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: uses)

    assert unserved(cast(Any, None)) == (AWAY.format("cuda") if uses else "")


@pytest.mark.parametrize(("every", "device"), [(UNASKED, "cpu"), ("auto", "meta"), ("9", "meta")])
def test_memory_is_taken_for_a_model_on_the_cpu_and_where_somebody_asked(
    every: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons, keeper = prepared(every, device, monkeypatch)

    assert not reasons
    assert keeper.asked


def test_both_bays_are_made_ready_before_they_are_needed_and_each_once() -> None:
    keeper, copier = Keeper(), CopyThread()
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

    copier = CopyThread()
    MemoryAhead(cast(Any, Empty()), copier).follow(1200)

    assert copier.rest()


def test_what_changed_before_it_was_copied_spoils_the_first_snapshot_and_no_later_one() -> None:
    names = ["resting", "late", "early", "back again"]
    tensors = [torch.randn(SMALL_BYTES) for _ in names]
    image = RankImage({}, tensors, names)
    taking = BegunSnapshot(3, image, Layouts().of(image, frozenset(names)), 1, learns=True)
    memory = bytearray(taking.layout.nbytes)
    bay = SimpleNamespace(memory=memoryview(memory))
    client = cast(Any, SimpleNamespace(reserve=lambda *_, **__: bay))
    taker = SimpleNamespace(_unchanged=UnchangedTensors())
    taker._unchanged.sum_up(names, tensors)
    _, late, early, back = tensors
    was = back.clone()

    taking.begin(client)
    early += 1
    back += 1
    taking.copy(client, lambda: None)
    late += 1
    back.copy_(was)

    assert Taker._learned(cast(Any, taker), taking) == ["back again", "early"]
    assert taker._unchanged.names == {"resting"}


def test_the_snapshot_before_stands_until_the_restored_step_is_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first losses tell; a bay that was taken for this very step would be that one's."""
    steps = SimpleNamespace(index=6, begins=lambda top: True)
    runtime = SimpleNamespace(training_loops={"loop"}, stack=[])
    worker = SimpleNamespace(
        unvoted=steps, acting=False, runtime=runtime, transacts=True, lost=(),
        env=SimpleNamespace(snapshot_every="3", birth=0),
        guarantee=SimpleNamespace(promise="rollback"),
    )  # fmt: skip
    earlier = SimpleNamespace(step_begins=lambda stack: None, note=lambda top: None)
    taker = Taker(
        cast(Any, SimpleNamespace(worker=worker)), cast(Any, steps), cast(Any, Keeper()),
        pace=FixedPace(3), attempt=1, earlier_values=cast(Any, earlier),
        uncounted=cast(Any, SimpleNamespace(iteration_begins=lambda: True)),
    )  # fmt: skip
    taken: list[int] = []
    monkeypatch.setattr(taking, "stack_of", lambda stack, top: stack)
    monkeypatch.setattr(taker, "_take", lambda top: taken.append(steps.index))
    monkeypatch.setattr(taker, "_prepare", lambda: taken.append(-steps.index))
    taker.resumes(SnapshotId(0, 6), cast(Any, None), 77)

    for steps.index in (6, 9):
        taker.begins(cast(Any, None))

    assert taken == [9]
