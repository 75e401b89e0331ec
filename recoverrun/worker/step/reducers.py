"""The reducers of a worker: one for the gradients of each model that it trains."""

from ft_collectives.communicators.channel import Accelerator
from ft_collectives.step.reducer import Reducer
from recoverrun.worker.step import exact_mode
from recoverrun.worker.step.worker_state import WorkerState


class Reducers:
    """Makes reducers. Their channels are paired by number, as all ranks make them in one order."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self.over: Accelerator | None = None  # where gradients are reduced; None: the CPU
        self._count = 0

    def new(self) -> Reducer:
        """The next reducer, on a channel of its own."""
        worker = self._worker
        protection = worker.protection
        fabric, layout, machine = protection.fabric, protection.layout, protection.machine
        _, shard = layout.place(worker.env.rank)
        replicas = [replica[shard] for replica in layout.replicas]
        name, what = f"gradients{shard}.{self._count}", "the reduction of gradients"
        channel = fabric.open(name, replicas, over=self.over, what=what)
        self._count += 1
        exact = exact_mode.exact_sum(machine, fabric, channel) if worker.env.exact else None
        return Reducer(fabric, channel, on_launch=self._launched, exact_sum=exact)

    def _launched(self, number: int, total: int) -> None:
        self._worker.failpoints.strike(self._worker.step, "reduce", number, total)
