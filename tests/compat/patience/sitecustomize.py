"""Has ranks wait between two steps: survivors until a lost replica can take part again, all until a
snapshot is safe.

Python loads this by itself where its folder is first on PYTHONPATH. Scripts of the table have ten
steps of some milliseconds, and a fresh process imports torch for seconds. So whoever has committed
a step in which a replica is lost waits, until it is invited to meet that replica again, or until
whoever watches the run has left the file COMPAT_GO: nobody comes. And a step that is to be lost
begins once there is the file COMPAT_SAFE.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

GO, SAFE = os.environ.get("COMPAT_GO", ""), os.environ.get("COMPAT_SAFE", "")
LOOK_S = 0.05
SAFE_BEFORE = 4
"""The step from which on there is a snapshot to go back to."""


def waits(survivor: Any) -> bool:
    """True if a replica is lost that has not been let in, and may still come.

    Nobody is invited before a step of this view is planned: a step that was whole as the replica
    was lost is not the one to wait after.
    """
    worker = survivor._parts.worker
    if worker.protection.machine.plan_is_stale:
        return False
    live = worker.view.live_ranks
    lost = [rank for rank in range(worker.env.world_size) if rank not in live]
    return bool(lost) and not set(lost) & set(worker.invited) and not os.path.exists(GO)


def wait_for_the_lost(module: ModuleType) -> None:
    """Survivors wait after each step."""
    kind = vars(module)["Survivor"]
    committed = kind.committed

    def wait(survivor: Any) -> None:
        committed(survivor)
        worker = survivor._parts.worker
        while waits(survivor):
            with worker.changed:
                worker.changed.wait(LOOK_S)

    kind.committed = wait


def wait_for_a_snapshot(module: ModuleType) -> None:
    """Ranks wait as a step begins."""
    kind = vars(module)["Taker"]
    begins = kind.begins

    def wait(taker: Any, top: Any) -> None:
        begins(taker, top)
        while taker._steps.index >= SAFE_BEFORE and not os.path.exists(SAFE):
            time.sleep(LOOK_S)  # A file of another process: there is nothing to wait on.

    kind.begins = wait


PATIENT: dict[str, Callable[[ModuleType], None]] = {
    **({"recoverrun.worker.arrival.survivor": wait_for_the_lost} if GO else {}),
    **({"recoverrun.worker.snapshots.taking": wait_for_a_snapshot} if SAFE else {}),
}
"""By the module that has who is to wait."""


class Loader(importlib.machinery.SourceFileLoader):
    """Of one of these modules."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        PATIENT[module.__name__](module)


class Finder(importlib.abc.MetaPathFinder):
    """Knows these modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in PATIENT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


for name, patient in PATIENT.items():
    if name in sys.modules:  # of a process that was forked
        patient(sys.modules[name])
if PATIENT:
    sys.meta_path.insert(0, Finder())
