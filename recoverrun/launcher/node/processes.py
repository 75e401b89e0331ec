"""The processes of this node's ranks: the newest of each, and the one that failed last."""

import os
from collections.abc import Iterable
from pathlib import Path

from recoverrun.launcher.node.spares import Spares
from recoverrun.launcher.node.worker_messages import Worker


class Processes:
    """The processes of one attempt; `newest` is by rank."""

    def __init__(self, spares: Spares) -> None:
        self._spares = spares
        self.newest: dict[int, Worker] = {}
        self._failed: dict[int, Worker] = {}  # a former process of a rank that began again

    @property
    def pids(self) -> dict[int, int]:
        """The pids by rank, of workers that are not reaped yet."""
        return {rank: w.child.pid for rank, w in self.newest.items() if not w.ended}

    @property
    def known(self) -> frozenset[int]:
        """The pids of all processes that somebody here waits for: workers and spares."""
        return self._spares.pids.union(self.pids.values())

    def have_finished(self, ranks: Iterable[int]) -> bool:
        """True if the newest of each has ended, after its script, and not with an error."""
        newest = [self.newest.get(rank) for rank in ranks]
        return all(w is not None and w.ended and w.farewell and not w.fell for w in newest)

    def put(self, worker: Worker) -> Worker | None:
        """`worker` has begun; returns the process that its rank had before."""
        former = self.newest.get(worker.rank)
        if former is not None and former.fell:
            self._failed[worker.rank] = former
        self.newest[worker.rank] = worker
        return former

    def error_file(self, rank: int) -> Path | None:
        """Return the error file of the rank's process that failed last, if it has left one."""
        worker = self._to_blame(rank)
        path = None if worker is None else Path(worker.error_file)
        return path if path is not None and path.exists() else None

    def stderr(self, rank: int) -> Path | None:
        """The file that its errors went to, if they did not go to the console alone."""
        worker = self._to_blame(rank)
        path = None if worker is None else worker.stderr
        return None if path is None or path == Path(os.devnull) else path

    def _to_blame(self, rank: int) -> Worker | None:
        """The rank's newest process, unless only a former one has failed."""
        newest = self.newest.get(rank)
        return newest if newest is None or newest.fell else self._failed.get(rank, newest)
