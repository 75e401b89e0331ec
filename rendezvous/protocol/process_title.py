"""The names of launchers and workers in the list of processes.

`ps` and `top` show two names: the command line, which only the package setproctitle can change (it
is used where it is installed), and a name of 15 characters, which a process may write by itself.
"""

import re
from pathlib import Path

COMM = Path("/proc/self/comm")
"""The short name of the thread that writes it: the main one's is that of the process."""

COMM_CHARS = 15


def entitle(role: str, script: str) -> None:
    """Call this process `recoverrun: ROLE SCRIPT`, and by its short name `ROLE:SCRIPT`."""
    name = script.rpartition("/")[2]
    try:
        from setproctitle import setproctitle
    except ImportError:
        pass  # It is an extra.
    else:
        setproctitle(f"recoverrun: {role} {name}")
    try:
        COMM.write_bytes(short_name(role, name).encode(errors="replace")[:COMM_CHARS])
    except OSError:
        pass  # A name is a help, and nothing depends on it.


def short_name(role: str, name: str) -> str:
    """Without blanks and brackets: programs that split /proc/PID/stat at these lose a process that
    has one, as Slurm's proctrack/linuxproc does, which then neither signals nor kills it.
    """
    return re.sub(r"[\s()]", "_", f"{role}:{name}")
