"""The claim of a job on its run directory: two jobs at once on one machine would mix their records.

Every launcher of a job holds a shared lock on one file of the directory for as long as it lives,
and the file names the job: as its launchers have agreed, and, behind it, where they meet, which
each of them knows before it has met any. Each machine has a file of its own: a server of files may
keep the locks of a machine that was lost, and the job may begin again elsewhere. So several
launchers of one job on one machine have one directory, one that is started again may write there,
and a job whose launchers have all ended claims nothing.
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


def refuse_others(run_dir: Path, meeting: str) -> None:
    """Raises Claimed if a job that meets elsewhere than at `meeting` has the directory.

    One that meets there may be ours: `claim` tells once the job has its name.
    """
    try:
        fd = os.open(claim_path(run_dir), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # There is none, or `claim` says what is wrong with it.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _, apart, known = os.pread(fd, _NAME_MOST, 0).partition(b"\n")
        if apart and known != os.fsencode(meeting):
            raise Claimed(_words(run_dir)) from None
    except OSError:
        pass
    finally:
        os.close(fd)


def claim(run_dir: Path, job: str, meeting: str = "") -> int:
    """The descriptor that holds the claim of `job`, -1 where the file system has no locks.

    Raises Claimed, and OSError where the file cannot be had.
    """
    name = os.fsencode(f"{job}\n{meeting}")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(claim_path(run_dir), flags, 0o600)
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(fd, 0)
            os.pwrite(fd, name, 0)
        except BlockingIOError:
            pass  # Somebody has it: perhaps a launcher of our own job.
        except OSError:
            os.close(fd)
            return -1
        fcntl.flock(fd, fcntl.LOCK_SH)  # At once: it is held for writing only as a name is written.
        if os.pread(fd, _NAME_MOST, 0) == name:
            return fd
        fcntl.flock(fd, fcntl.LOCK_UN)
    with suppress(OSError):
        os.close(fd)
    raise Claimed(_words(run_dir))


def _words(run_dir: Path) -> str:
    return f"another running job writes to {run_dir}"
