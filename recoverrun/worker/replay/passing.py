"""The time for which earlier microbatches of an iteration are passed over, and its limit.

Where a loop makes a rank's data anew in each epoch, a lost microbatch is executed from the top of
the epoch, with the forward passes of all before it. Late in a long epoch that costs more in every
step than the microbatch is worth: other samples are the better answer.
"""

import time
from dataclasses import replace

from recoverrun.worker.errors import Unwind
from recoverrun.worker.tracking.microbatches import Microbatch
from recoverrun.worker.tracking.script_runtime import ScriptRuntime

PASSING_S = 10.0
"""The longest time for which microbatches before the one that is made up are passed over."""

PASSES = (
    "{loop}: a lost microbatch has to be executed from the top of this loop's iteration, and to "
    "pass over the {count} before it takes more than {limit_s:.0f} s"
)


class PassingClock:
    """The clock of one executor."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self._runtime = runtime
        self._began_at = 0.0
        self._endless: set[str] = set()  # loops of which too many were passed over

    def begins(self) -> None:
        """The body of a loop is about to be executed as another rank."""
        self._began_at = time.monotonic()

    def look(self, loop: str, count: int) -> None:
        """One of `count` microbatches is passed over. Spoils the execution and raises Unwind if
        that takes too long. Shard mates wait for each other: none may judge by its own clock.
        """
        layout = self._runtime.layout
        late = time.monotonic() - self._began_at > PASSING_S
        if late and layout is not None and layout.shards == 1:
            self._endless.add(loop)
            self._runtime.spoil(PASSES.format(loop=loop, count=count, limit_s=PASSING_S))
            raise Unwind("backward")

    def shorter(self, microbatch: Microbatch) -> Microbatch:
        """The same from the innermost loop, for fresh data, if another one takes too long."""
        if microbatch.top.loop.id not in self._endless:
            return microbatch
        return replace(microbatch, chosen=0)
