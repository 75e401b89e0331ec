"""Final parameters, left where a comparison can read them (`compare`)."""

import os

import torch

from recoverrun.hooks.strategy import Strategy


def leave(directory: str, rank: int, step: int, strategy: Strategy) -> None:
    """Write this rank's own parameters after `step` steps. Raises OSError."""
    parameters = {name: p.detach().clone() for name, p in strategy.parameters().items()}
    path = os.path.join(directory, f"rank{rank}.pt")
    torch.save({"step": step, "parameters": parameters}, path)
