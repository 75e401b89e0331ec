"""The knowledge of the others, in a process that takes a lost rank's place."""

from types import SimpleNamespace
from typing import Any, Never

import pytest

from recoverrun.worker.arrival.learned import LEARNED
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.proved_generators import ProvedGenerators
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

REGION = "s.py:3"


def never(reason: str) -> Never:
    raise AssertionError(reason)


def executes() -> Any:
    return SimpleNamespace(executor=Executor(ScriptRuntime(0), never))


def test_a_newcomer_does_not_take_its_own_batch_for_another_ranks() -> None:
    survivor, newcomer = executes(), executes()
    survivor.executor.items.fed[REGION] = "drawn"
    survivor.executor.talked, survivor.executor.longest_s = True, 2.5
    row = LEARNED["executes"]

    row.put(newcomer, row.read(survivor))

    executor = newcomer.executor
    assert (executor.talked, executor.rewrites, executor.longest_s) == (True, False, 2.5)
    top: Any = SimpleNamespace(item=[1.0], draws=[], ahead=[], loop=SimpleNamespace(id=REGION))
    with pytest.raises(NotReplayable, match="too long before it began"):
        executor.items.of(top, 1, told=False, proves=False, fresh=False)


def test_a_newcomer_knows_what_rank_0_alone_has_told_and_which_generators_were_resumed() -> None:
    survivor, newcomer = (
        SimpleNamespace(
            worker=SimpleNamespace(runtime=ScriptRuntime(0)),
            sources=SimpleNamespace(proved=ProvedGenerators(ScriptRuntime(0))),
        )
        for _ in range(2)
    )
    survivor.worker.runtime.gate.told = {"s.py::folder": "runs/53"}
    survivor.sources.proved.names.add("s.batches")

    for name in ("told", "proved"):
        LEARNED[name].put(newcomer, LEARNED[name].read(survivor))

    assert newcomer.worker.runtime.gate.told == {"s.py::folder": "runs/53"}
    assert newcomer.sources.proved.names == {"s.batches"}
