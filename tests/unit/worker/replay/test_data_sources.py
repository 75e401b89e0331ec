"""Loaders that threads read ahead while others are executed, and such as no proof has met."""

import threading
from collections.abc import Iterator
from functools import partial
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from recoverrun.worker.analysis.moving_shares import BOTH
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

WORLD, BATCH, COUNT = 3, 2, 24
WITHIN_S = 30


def _loader(rank: int) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(COUNT))
    sampler = DistributedSampler(data, WORLD, rank, shuffle=True, seed=4)
    return DataLoader(data, BATCH, sampler=sampler)


def _fetched(items: Iterator[Any], asked: "Queue[None]", got: "Queue[Any]") -> None:
    """The thread: one item each time that it is asked."""
    for item in items:
        got.put(item[0].tolist())
        asked.get()
    got.put(None)


@pytest.mark.parametrize("fresh", [False, True])
def test_what_a_thread_fetches_ahead_meanwhile_is_its_own(fresh: bool) -> None:
    """It took other data beside its own: another rank's, or one batch more than others have."""
    runtime = ScriptRuntime(0)
    runtime.observer = SimpleNamespace(seen=frozenset)  # type: ignore[assignment]  # torch is there
    executor = Executor(runtime, pytest.fail)
    items = DataSources(runtime, executor).iterate(_loader(0), DataLoader.__iter__)
    asked: Queue[None] = Queue()
    got: Queue[Any] = Queue()
    thread = threading.Thread(target=_fetched, args=(items, asked, got))
    thread.start()
    found = [got.get(timeout=WITHIN_S)]

    executor.fresh = fresh
    with runtime.mode.as_rank(0 if fresh else 2):
        asked.put(None)
        found.append(got.get(timeout=WITHIN_S))
    executor.fresh = False
    while found[-1] is not None:
        asked.put(None)
        found.append(got.get(timeout=WITHIN_S))
    thread.join(WITHIN_S)

    assert found[:-1] == [batch[0].tolist() for batch in _loader(0)]


def test_what_an_iterable_data_set_makes_as_it_is_read_is_told_to_nobody() -> None:
    """Another rank's copy makes its own, and a process that comes back has made none yet."""

    def rows(rank: int) -> Iterator[int]:
        yield from range(rank, 6, 3)

    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(sources.feed(rows(1), "Rows.rows", partial(rows, 1)))

    runtime = ScriptRuntime(1)
    sources = DataSources(runtime, Executor(runtime, lambda reason: None))  # type: ignore[arg-type]
    batches = LoaderIterator(DataLoader(Rows(), None), DataLoader.__iter__, sources, 0)
    assert next(batches) == 1
    assert not [name for name in sources.roots() if "rows" in name]

    kept = sources.feed(rows(1), "rows", partial(rows, 1))
    assert [name for name in sources.roots() if "rows" in name] == ["generator_rows_0"]
    kept.close()


@pytest.mark.parametrize("given", [False, True])
def test_a_loader_of_a_kind_that_no_proof_has_met_is_no_lost_ranks_if_it_is_given_a_rank(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = ScriptRuntime(0)
    executor = Executor(runtime, pytest.fail)
    sources = DataSources(runtime, executor)
    monkeypatch.setattr(executor.influence, "gives", lambda name, apart: given)
    lost = SimpleNamespace(origin=lambda number, own, points: own, made=None)
    monkeypatch.setitem(executor.lost, 1, lost)  # type: ignore[arg-type]
    items = sources.iterate(_loader(0), DataLoader.__iter__)
    next(items)
    if given:
        with pytest.raises(NotReplayable, match="no proof has met one"):
            sources.created_at(0, 1)

    sources.proved.trust()

    assert sources.created_at(0, 1) is not None


@pytest.mark.parametrize(("made", "known"), [(None, True), ({0}, True), (frozenset(), False)])
def test_a_loader_that_may_be_another_one_on_each_rank_in_each_pass_is_known_of_its_maker_alone(
    made: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = ScriptRuntime(0)
    executor = Executor(runtime, pytest.fail)
    sources = DataSources(runtime, executor)
    monkeypatch.setattr(executor.influence, "gives", lambda name, apart: False)
    labels = SimpleNamespace(given=lambda kind: BOTH if kind == "TensorDataset" else 0)
    monkeypatch.setattr(executor.influence, "moving", lambda loops, apart: labels)
    lost = SimpleNamespace(origin=lambda number, own, points: own, made=made)
    monkeypatch.setitem(executor.lost, 1, lost)  # type: ignore[arg-type]
    items = sources.iterate(_loader(0), DataLoader.__iter__)
    next(items)

    if known:
        assert sources.created_at(0, 1) is not None
    else:
        with pytest.raises(NotReplayable, match="TensorDataset of a loader may be another one"):
            sources.created_at(0, 1)
