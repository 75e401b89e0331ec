"""Final parameters, left where a comparison can read them (`compare_weights`)."""

import os
from typing import Any

import torch

from recoverrun.worker.step.worker_state import WorkerState


def leave(worker: WorkerState) -> None:
    """Write this rank's parameters where the launcher asked for them. Raises OSError.

    Where there is one replica, and snapshots: those that optimizers have updated, in that order.
    """
    if not worker.env.finals:
        return
    if worker.strategy is not None:
        named = worker.strategy.parameters()
    elif worker.unvoted is not None:
        named = {f"{n}": _local(one) for n, one in enumerate(worker.unvoted.trained)}
    else:
        return
    parameters = {name: param.detach().clone() for name, param in named.items()}
    path = os.path.join(worker.env.finals, f"rank{worker.env.rank}.pt")
    torch.save({"step": worker.step, "parameters": parameters}, path)


def _local(param: Any) -> torch.Tensor:
    """The shard of this rank."""
    found: torch.Tensor = param.to_local() if hasattr(param, "to_local") else param
    return found
