"""On the path of runs under test: a signal has a process write the stacks of all its threads.

A real-time signal, because launchers and scripts have other uses for those with a name.
"""

import faulthandler
import os
import signal
from pathlib import Path

_folder = os.environ.get("KILL_MATRIX_STACKS")
if _folder:
    # Held open for life: a process that hangs must not have to open anything.
    _file = Path(_folder, f"stacks.{os.getpid()}").open("w")
    faulthandler.register(signal.SIGRTMIN + 7, file=_file, all_threads=True)
