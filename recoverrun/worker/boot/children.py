"""What the script forks: data workers, above all. They are no ranks."""

import os

from recoverrun.worker.tracking.loop_tracker import ScriptRuntime


def forget_in_children(runtime: ScriptRuntime) -> None:
    """Be inert there. What another rank's code begins goes on under that rank's number."""

    def disarm() -> None:
        runtime.active = False
        runtime.speaks_as, runtime.acting_rank = runtime.acting_rank, None

    os.register_at_fork(after_in_child=disarm)
