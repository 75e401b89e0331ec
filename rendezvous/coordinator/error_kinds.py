"""Errors by what they tell of. Those of another process's end can be heard first without being
first; those of a machine's disk are raised by all its ranks alike, and not by others.
"""

import errno
import re

_CONSEQUENCE = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|remote process exited"
    r"|peer (?:has )?(?:closed|exited|died)|processgroup\w* .*abort|\babort(?:ed)? by"
    r"|collective .*(?:abort|timed? ?out)|watchdog|store .*(?:closed|gone|unreachable)"
    r"|superseded|socket (?:closed|timeout)|unexpected eof"
    r"|connectfullmesh|pair closure|ncclremoteerror|likely closed|recvvalue failed|sendbytes failed"
    r"|timed out waiting \d+ ?ms for (?:recv|send)|client socket has timed out",
    re.IGNORECASE,
)


_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
_OWN_PIPE = re.compile(rf"BrokenPipeError: \[Errno {errno.EPIPE:d}\]")
_NUMBER = re.compile(r"\[Errno (\d{1,4})\]")


def tells_of_a_disk(error: str) -> bool:
    """True if an exception's line is about a file system that is full, read-only or broken."""
    number = _NUMBER.search(error)
    return number is not None and int(number[1]) in _DISK


def tells_of_another(error: str) -> bool:
    """True if an exception's line is about the end of another process, and not its own cause.

    Python's own BrokenPipeError is about a pipe of the script's: what read its output has gone. It
    is no rank; ranks are connected by torch, whose exceptions have other names.
    """
    return _CONSEQUENCE.search(error) is not None and not _OWN_PIPE.match(error)
