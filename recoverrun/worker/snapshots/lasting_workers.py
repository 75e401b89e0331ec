"""Worker processes of a loader that outlive its first pass (`persistent_workers`).

A process that goes back begins them anew, with the seeds of their first pass. If items draw random
numbers, nobody knows how many were drawn in the passes before, and those of a snapshot in the first
pass would begin the second one with other numbers: so no snapshot can be gone back to. This
is tried once, in a copy of this process, with one batch. An iterable data set may have a place
of its own in its workers from the second pass on.
"""

import weakref
from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from recoverrun.worker.arrival.source_places import loader_iterators
from recoverrun.worker.data.source import Source
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.forked_child import Plain

WITHIN_S = 10.0

HIDDEN = (
    "the worker processes of a {} over a {} go on from one pass to the next (persistent_workers),"
    " and how many random numbers they have drawn is not known"
)


class LastingWorkers:
    """The worker processes of one process's loaders that outlive a pass."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._draws: weakref.WeakKeyDictionary[DataLoader[Any], bool] = weakref.WeakKeyDictionary()

    def require(self, sources: Iterable[Source]) -> None:
        """Raises NotReachable where a process that goes back would have other data."""
        for _, one in loader_iterators(sources):
            loader, opening = one.loader, one.opening
            if not (loader.persistent_workers and loader.num_workers):
                continue
            if not opening.is_iterable and loader not in self._draws:
                self._draws[loader] = self._tried(loader)
            if opening.renewed if opening.is_iterable else self._draws[loader]:
                kinds = type(loader).__name__, type(loader.dataset).__name__
                raise NotReachable(HIDDEN.format(*kinds))

    def _tried(self, loader: "DataLoader[Any]") -> bool:
        """True if a batch draws random numbers. Where that cannot be tried, losses tell it once all
        have gone back.
        """

        def work() -> Plain:
            self._worker.runtime.mode.tries()
            self._worker.failpoints.disarm()
            rows = next(iter(loader._index_sampler))
            before = read_streams()
            items = [loader.dataset[row] for row in (rows if isinstance(rows, list) else [rows])]
            loader.collate_fn(items if isinstance(rows, list) else items[0])
            return {"draws": read_streams() != before}

        try:
            return bool(forked_child.run(work, WITHIN_S).get("draws"))
        except forked_child.ChildFailed:
            return False
