"""Has survivors wait between two steps until a lost replica can take part again.

Python loads this by itself where its folder is first on PYTHONPATH. Scripts of the table have ten
steps of some milliseconds, and a fresh process imports torch for seconds. So whoever has committed
a step in which a replica is lost waits, until it is invited to meet that replica again, or until
whoever watches the run has left the file COMPAT_GO: nobody comes.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

GO = os.environ.get("COMPAT_GO", "")
MODULE = "recoverrun.worker.arrival.survivor"
LOOK_S = 0.05


def waits(survivor: Any) -> bool:
    """True if a replica is lost that has not been let in, and may still come."""
    worker = survivor._parts.worker
    live = worker.view.live_ranks
    lost = [rank for rank in range(worker.env.world_size) if rank not in live]
    return bool(lost) and not set(lost) & set(worker.invited) and not os.path.exists(GO)


def patient(kind: Any) -> None:
    """Survivors of this `kind` wait after each step."""
    committed = kind.committed

    def wait(survivor: Any) -> None:
        committed(survivor)
        worker = survivor._parts.worker
        while waits(survivor):
            with worker.changed:
                worker.changed.wait(LOOK_S)

    kind.committed = wait


class Loader(importlib.machinery.SourceFileLoader):
    """Of the module that has survivors."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        patient(vars(module)["Survivor"])


class Finder(importlib.abc.MetaPathFinder):
    """Knows the one module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


if GO and MODULE in sys.modules:  # of a process that was forked
    patient(vars(sys.modules[MODULE])["Survivor"])
elif GO:
    sys.meta_path.insert(0, Finder())
