"""Errors that only tell of another process's end: they can be heard first without being first."""

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


def tells_of_another(error: str) -> bool:
    """True if an exception's line is about the end of another process, and not its own cause."""
    return _CONSEQUENCE.search(error) is not None
