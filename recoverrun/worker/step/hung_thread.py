"""The end of a process whose script's thread executes for another rank, and cannot be reached.

The control thread ends it. It leaves its reason where an uncaught exception of the script would
stand, so the launcher and the journal tell it as the cause of this replica's loss; and others read
in its shared memory that its microbatch is not to be tried again.
"""

import os
from typing import TYPE_CHECKING, Never

from recoverrun.worker.error_file import write_error_file

if TYPE_CHECKING:
    from recoverrun.worker.step.driver import Session

HUNG_CODE = 1


def leave_hung(session: "Session", thread: int, limit_s: float) -> Never:
    """From the control thread."""
    session.remnants.gives_up()
    words = session.impersonator.custody.late(thread, limit_s)
    reason = f"rank {session.env.rank} hangs: {words}"
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if error_file:
        write_error_file(error_file, TimeoutError(reason))
    os.write(2, f"{reason}\n".encode())  # The script's thread may hold what `print` needs.
    os._exit(HUNG_CODE)
