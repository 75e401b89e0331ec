"""The process that tells others of the run, as its launcher sees it: started, told, ended.

It reads the journal and nothing else, so the launcher never waits for it while the job lives.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

CLOSE_S = 10.0
"""The time that the last events have to go out as a launcher ends."""

REAP_S = 5.0
"""The time that a process has to end after SIGKILL: a disk may hold it up."""

UNTOLD = (
    "! the process that tells others of the run did not come to its end within {:.0f} s, and was "
    "ended: the last events may not have been passed on"
)


class CompanionProcess:
    """Runs beside this launcher, from before the job is formed until it is over."""

    def __init__(self, order: str) -> None:
        """`order` says what it is to do, as JSON."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "recoverrun.companion", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # A signal for the launcher's group is not for it.
        )
        self._say(order.encode())  # Not on its command line: that everybody can read.

    def begin(self, run_dir: Path) -> None:
        """Tell it where the journal is."""
        self._say(os.fsencode(run_dir.absolute()))

    def _say(self, word: bytes) -> None:
        """All that it is told is shorter than what a pipe takes without a wait."""
        assert self._process.stdin is not None, "it was asked for"
        with suppress(OSError):  # It may be gone, which is no trouble of the job's.
            self._process.stdin.write(word + b"\0")
            self._process.stdin.flush()

    def close(self) -> str:
        """Let it finish, for CLOSE_S at most; words for the user if it has not, or ""."""
        assert self._process.stdin is not None, "it was asked for"
        with suppress(OSError):
            self._process.stdin.close()
        if self._ended(CLOSE_S):
            return ""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._ended(REAP_S)
        return UNTOLD.format(CLOSE_S)

    def _ended(self, within_s: float) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True
