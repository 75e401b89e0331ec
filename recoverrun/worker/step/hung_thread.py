"""The end of a process whose script's thread executes for another rank, and cannot be reached.

The control thread ends it. It leaves its reason where an uncaught exception of the script would
stand, so the launcher and the journal tell it as the cause of this replica's loss; and others read
in its shared memory that its microbatch is not to be tried again.
"""

import os
from typing import Never

from recoverrun.worker.error_file import write_error_file
from recoverrun.worker.step.worker_state import WorkerState

HUNG_CODE = 1


def leave_hung(worker: WorkerState, words: str) -> Never:
    """From the control thread; `words` tell where the script's thread is."""
    worker.context_buffer.gives_up()
    reason = f"rank {worker.env.rank} hangs: {words}"
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if error_file:
        write_error_file(error_file, TimeoutError(reason))
    os.write(2, f"{reason}\n".encode())  # The script's thread may hold what `print` needs.
    os._exit(HUNG_CODE)
