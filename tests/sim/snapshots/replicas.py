"""Replicas of a simulated job: as long as one is whole a loss is recovered from in its step."""

from collections.abc import Callable, Mapping

from tests.sim.engine import Engine
from tests.sim.snapshots.worker import Worker


class Replicas:
    """`many` of them, of ranks that follow each other; those of one attempt at a time."""

    def __init__(self, world: int, many: int, engine: Engine) -> None:
        shards = world // many
        self._replicas = [range(at * shards, (at + 1) * shards) for at in range(many)]
        self._engine = engine
        self.gone: set[int] = set()  # ranks of lost replicas
        self._births = 0

    def begin(self) -> None:
        """An attempt begins, with all ranks."""
        self.gone.clear()
        self._births = 0

    def come(self) -> tuple[set[int], int]:
        """Those that were lost take part again, in processes of the birth that is returned."""
        came, self.gone = self.gone, set()
        self._births += 1
        return came, self._births

    def members(self, workers: Mapping[int, Worker]) -> list[Worker]:
        """Ranks whose replicas are not lost, as far as is known."""
        return [worker for rank, worker in workers.items() if rank not in self.gone]

    def survive(self, workers: Mapping[int, Worker], delay_s: Callable[[], float]) -> bool:
        """Ranks have ended. False if no replica is whole; else the others hear of it, each after a
        `delay_s` of its own, and have to do what the lost ones had to.
        """
        whole = [one for one in self._replicas if all(workers[rank].alive for rank in one)]
        if len(self._replicas) == 1 or not whole:
            return False
        lost = [one for one in self._replicas if one not in whole]
        self.gone.update(rank for one in lost for rank in one)
        if not self.gone:
            return True  # what was lost has come back before that was known
        for rank in self.gone:
            workers[rank].die()  # the launcher ends what is left of a replica
        for worker in self.members(workers):
            self._engine.after(delay_s(), worker.hear_of_loss, min(self.gone))
        return True
