"""The parts of recovery that the table calls, as `boot.assembly` has put them together."""

from dataclasses import dataclass

from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.groups.prologue import Prologue
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.step.interfaces import HearsBackwards
from recoverrun.worker.step.worker_state import WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one worker."""

    worker: WorkerState
    driver: HearsBackwards
    executor: Executor
    left: LeftContexts
    sources: DataSources
    made: MadeObjects
    prologue: Prologue
