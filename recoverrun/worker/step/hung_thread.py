"""The end of a process whose script's thread executes for another rank, and cannot go on.

It cannot be reached, or has left its shard mates in the midst of what they execute together. The
process leaves its reason where an uncaught exception of the script would stand, so the launcher and
the journal tell it as the cause of this replica's loss; and others read in its shared memory that
its microbatch is not to be tried again.
"""

import os
from typing import Never

from recoverrun.worker.error_file import write_error_file
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.exit_codes import ExitCode


def leave_hung(worker: WorkerState, words: str) -> Never:
    """End this process, on the control thread; `words` tell where the script's thread is."""
    _leave(worker, TimeoutError(f"rank {worker.env.rank} hangs: {words}"))


def leave_mates(worker: WorkerState, words: str) -> Never:
    """End this process, on the script's thread; `words` tell what has ended its execution."""
    _leave(worker, RuntimeError(f"rank {worker.env.rank} leaves: {words}"))


def _leave(worker: WorkerState, reason: Exception) -> Never:
    worker.context_buffer.gives_up()
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if error_file:
        write_error_file(error_file, reason)
    os.write(2, f"{reason}\n".encode())  # The script's thread may hold what `print` needs.
    os._exit(ExitCode.FAILED)
