"""What launchers and workers are called in the list of processes.

`ps` and `top` show two names: the command line, which only the package setproctitle can change (it
is used where it is installed), and a name of 15 characters, which a process may write by itself.
"""

from pathlib import Path

COMM = Path("/proc/self/comm")
"""The short name of the thread that writes it: the main one's is that of the process."""

COMM_CHARS = 15


def entitle(role: str, script: str) -> None:
    """Call this process `recoverrun: ROLE SCRIPT`, or `ROLE SCRIPT` where there is no room."""
    name = script.rpartition("/")[2]
    try:
        from setproctitle import setproctitle
    except ImportError:
        try:
            COMM.write_bytes(f"{role} {name}".encode(errors="replace")[:COMM_CHARS])
        except OSError:
            pass  # A name is a help, and nothing depends on it.
    else:
        setproctitle(f"recoverrun: {role} {name}")
