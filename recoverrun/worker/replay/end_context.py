"""The context of a rank at the end of a microbatch that is executed as it.

It is taken as the backward returns, as our own is: what `finally` clauses and context managers do
on the way out of the code lies behind the backward, and nobody runs that as the rank.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.replay.shared_cells import settled

Take = Callable[[dict[str, Any]], Context]
"""Captures the context, from the variables of the region."""


class EndContext:
    """Of one execution after another."""

    def __init__(self) -> None:
        self.local: MutableMapping[str, Any] = {}  # variables of the code that runs
        self.reached = False  # nothing more of the code counts
        self.taken: Context | None = None
        self._take: Take | None = None

    def begins(self, wanted: bool, take: Take) -> None:
        """Code is about to run. Its end is taken if it is `wanted`."""
        self.reached, self.taken, self._take = False, None, take if wanted else None

    def reach(self) -> None:
        """The backward has returned that ends the microbatch."""
        if self._take is not None and not self.reached:
            self.taken = self._take(settled(self.local))
        self.reached = True
