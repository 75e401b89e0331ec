"""Final parameters, left where a comparison can read them (`compare_weights`)."""

import os

import torch

from recoverrun.worker.step.worker_state import WorkerState


def leave(worker: WorkerState) -> None:
    """Write this rank's parameters where the launcher asked for them. Raises OSError."""
    if not worker.env.finals or worker.strategy is None:
        return
    named = worker.strategy.parameters()
    parameters = {name: param.detach().clone() for name, param in named.items()}
    path = os.path.join(worker.env.finals, f"rank{worker.env.rank}.pt")
    torch.save({"step": worker.step, "parameters": parameters}, path)
