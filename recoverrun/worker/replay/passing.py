"""The limit of the time for which earlier microbatches of an iteration are passed over.

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

TOO_LONG = (
    "{loop}: a lost microbatch has to be executed from the top of this loop's iteration, and to "
    "pass over the {count} before it takes more than {limit_s:.0f} s"
)


class PassingClock:
    """The clock of one executor, and the loops in which it has found the limit exceeded."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self._runtime = runtime
        self._began_at = 0.0
        self._endless: set[str] = set()  # ids of loops whose limit was exceeded

    def start(self) -> None:
        """Count from now: the body of a loop is about to be executed as another rank."""
        self._began_at = time.monotonic()

    def check(self, loop: str, count: int) -> None:
        """Spoil the execution and raise Unwind if the limit is exceeded; called as each of the
        `count` microbatches is passed over. Shard mates wait for each other, so none of them may
        give up by its own clock.
        """
        layout = self._runtime.layout
        late = time.monotonic() - self._began_at > PASSING_S
        if late and layout is not None and layout.shards == 1:
            self._endless.add(loop)
            self._runtime.spoil(TOO_LONG.format(loop=loop, count=count, limit_s=PASSING_S))
            raise Unwind("backward")

    def within_limit(self, microbatch: Microbatch) -> Microbatch:
        """The microbatch, to be executed from the innermost loop with other samples if the loop
        that was chosen for it has exceeded the limit before.
        """
        if microbatch.top.loop.id not in self._endless:
            return microbatch
        return replace(microbatch, chosen=0)
