"""Final parameters, left where a comparison can read them (`compare_weights`)."""

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from recoverrun.worker.step.driver import Session


def leave(session: "Session") -> None:
    """Write this rank's parameters where the launcher asked for them. Raises OSError."""
    if not session.env.finals or session.strategy is None:
        return
    named = session.strategy.parameters()
    parameters = {name: param.detach().clone() for name, param in named.items()}
    path = os.path.join(session.env.finals, f"rank{session.env.rank}.pt")
    torch.save({"step": session.step, "parameters": parameters}, path)
