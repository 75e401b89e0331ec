"""Switches that blocks (`with`) of the script operate: autocast, torch's modes, and its model's
reduction.

Code is executed again at the end of a backward, within the blocks that are open there. Meanwhile
all is switched as it was when the iteration began.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from ft_collectives.communicators import script_modes
from ft_collectives.communicators.script_modes import Modes
from recoverrun.worker.step.strategy import Strategy, Switched, nothing_switched

CASTING = ("cpu", "cuda")
"""Kinds of devices on which torch casts to other kinds of numbers (`torch.autocast`)."""

Switches = tuple[list[torch.dtype | None], Switched, Modes]


def now(strategy: Strategy | None) -> Switches:
    """Return the present state of all switches."""
    casts = [
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        for kind in CASTING
    ]
    of_reduction = (nothing_switched if strategy is None else strategy.switches)()
    return casts, of_reduction, script_modes.of_script()


@contextmanager
def as_at(then: Switches | None) -> Iterator[None]:
    """Switch all as it was when `now` returned `then`, and back again afterwards."""
    casts, of_reduction, modes = then or ([], nothing_switched(), script_modes.of_script())
    with ExitStack() as blocks:
        for kind, dtype in zip(CASTING, casts, strict=False):  # none if nobody has looked then
            if dtype is not None or torch.is_autocast_enabled(kind):
                known = dtype or torch.get_autocast_dtype(kind)
                blocks.enter_context(torch.autocast(kind, known, enabled=dtype is not None))
        blocks.enter_context(of_reduction())
        blocks.enter_context(script_modes.within(modes))  # last: what is above is ours
        yield
