"""Random numbers that a rank draws in code that the script means for it alone.

A rank 0 that evaluates draws numbers that others do not draw. Counted apart, they do not hide that
all ranks draw equally often for training, so each one's stream can be told from any other's.
"""

from typing import Any

from recoverrun.worker.rng import rng
from recoverrun.worker.tracking.loop_tracker import ScriptRuntime


class Alone:
    """Around what the script does on this rank alone, as the script's own condition says."""

    def __init__(self, runtime: ScriptRuntime, where: str) -> None:
        self._runtime = runtime
        self._where = where
        self._before: rng.Streams | None = None

    def __enter__(self) -> None:
        runtime = self._runtime
        if runtime.active and runtime.acting_rank is None and not runtime.alone:
            self._before = rng.read()
        runtime.alone += 1

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._runtime.alone -= 1
        if self._before is not None:
            rng.count_alone(self._before, self._where)


def seeding(runtime: ScriptRuntime) -> None:
    """The script is about to seed torch's streams."""
    if runtime.acting_rank is None:
        rng.forget_alone()
    runtime.seeding()
