"""`itertools.cycle` over a loader, as the script and as another rank get it."""

import itertools
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from recoverrun.worker.data.cycle_source import CycleSource
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

WORLD, BATCH, COUNT = 3, 2, 21


def _loader(rank: int) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(COUNT))
    sampler = DistributedSampler(data, WORLD, rank, shuffle=True, seed=4)
    return DataLoader(data, BATCH, sampler=sampler)


def _sources() -> tuple[ScriptRuntime, DataSources]:
    runtime = ScriptRuntime(0)
    runtime.observer = SimpleNamespace(seen=frozenset)  # type: ignore[assignment]  # torch is there
    runtime.own_modules = frozenset({__name__})
    return runtime, DataSources(runtime, Executor(runtime, pytest.fail))


def _cycle(sources: DataSources, items: Any) -> Iterator[Any]:
    def cycle() -> Iterator[Any]:  # where `patches` calls from
        return sources.cycle(itertools.cycle, items)

    return cycle()


def _wrapped(sources: DataSources, loader: DataLoader[Any]) -> Iterator[Any]:
    return sources.iterate(loader, DataLoader.__iter__)


def _values(items: Iterator[Any], count: int) -> list[list[int]]:
    return [next(items)[0].tolist() for _ in range(count)]


def test_a_script_gets_what_itertools_gives_it() -> None:
    _, sources = _sources()

    ours = _values(_cycle(sources, _wrapped(sources, _loader(0))), 11)

    assert ours == _values(itertools.cycle(_loader(0)), 11)


@pytest.mark.parametrize("passed", [0, 2, 5, 9])
def test_another_rank_gets_its_own_items_in_every_pass(passed: int) -> None:
    runtime, sources = _sources()
    cycle = _cycle(sources, _wrapped(sources, _loader(0)))
    _values(cycle, passed + 2)
    expected = _values(itertools.cycle(_loader(2)), 20)[passed : passed + 2]

    runtime.mode.acting_rank = 2
    runtime.sources[-1].seek(2, passed)
    as_two = _values(cycle, 2)
    runtime.mode.acting_rank = None

    assert as_two == expected
    assert _values(cycle, 3) == _values(itertools.cycle(_loader(0)), 20)[passed + 2 : passed + 5]


def test_another_rank_cannot_be_served_past_a_pass_that_is_not_over() -> None:
    runtime, sources = _sources()
    cycle = _cycle(sources, _wrapped(sources, _loader(0)))
    _values(cycle, 1)

    runtime.mode.acting_rank = 2
    runtime.sources[-1].seek(2, 1)

    with pytest.raises(NotReplayable, match="takes more items"):
        next(cycle)


def test_libraries_get_the_original() -> None:
    runtime, sources = _sources()
    runtime.own_modules = frozenset()

    cycle = _cycle(sources, [1, 2])

    assert type(cycle) is itertools.cycle
    assert type(sys.modules["itertools"].cycle) is type


def test_nothing_cycles_for_ever_over_nothing() -> None:
    _, sources = _sources()
    cycle = _cycle(sources, [])

    assert isinstance(cycle, CycleSource)
    assert list(itertools.islice(cycle, 3)) == []
