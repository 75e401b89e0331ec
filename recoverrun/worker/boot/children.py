"""Processes that the script forks: data workers, above all. They are no ranks."""

import os

from recoverrun.worker.tracking.script_runtime import ScriptRuntime


def forget_in_children(runtime: ScriptRuntime) -> None:
    """Be inert there. What another rank's code begins goes on under that rank's number."""

    os.register_at_fork(after_in_child=runtime.mode.forked)
    os.register_at_fork(after_in_child=runtime.progress.detach)
