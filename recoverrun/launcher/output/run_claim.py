"""The claim of a job on its run directory: two jobs at once on one machine would mix their records.

Every launcher of a job holds a shared lock on one file of the directory for as long as it lives,
and the file names the job. Each machine has a file of its own: a server of files may keep the locks
of a machine that was lost, and the job may begin again elsewhere. So several launchers of one job
on one machine have one directory, one that is started again may write there, and a job whose
launchers have all ended claims nothing.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

CLAIMS = ".job.*"
"""The names of all such files."""

_TRIES = 2
"""The holder may end between a look at the lock and a look at the name."""

_NAME_MOST = 4096


class Claimed(Exception):
    """Another job has this directory."""


def claim_path(run_dir: Path) -> Path:
    """The file of this machine."""
    return run_dir / f".job.{re.sub(r'[^A-Za-z0-9._-]', '_', os.uname().nodename)[:128]}"


def claim(run_dir: Path, job: str) -> int:
    """The descriptor that holds the claim of `job`, -1 where the file system has no locks.

    Raises Claimed, and OSError where the file cannot be had.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(claim_path(run_dir), flags, 0o600)
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(fd, 0)
            os.pwrite(fd, os.fsencode(job), 0)
        except BlockingIOError:
            pass  # Somebody has it: perhaps a launcher of our own job.
        except OSError:
            os.close(fd)
            return -1
        fcntl.flock(fd, fcntl.LOCK_SH)  # At once: it is held for writing only as a name is written.
        if os.pread(fd, _NAME_MOST, 0) == os.fsencode(job):
            return fd
        fcntl.flock(fd, fcntl.LOCK_UN)
    with suppress(OSError):
        os.close(fd)
    raise Claimed(f"another job that runs now writes to {run_dir}")
