"""A loader that a thread of the script reads ahead, while its main thread executes for others."""

import threading
from collections.abc import Iterator
from functools import partial
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from recoverrun.worker.data.loader_iterator import LoaderIterator
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
