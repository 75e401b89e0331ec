"""The output of a program of the node, which a doctor asks: it may be absent, fail or hang."""

import subprocess
from shutil import which


def output_of(*command: str, within_s: float) -> str:
    """The standard output of a program; "" if it is not there, fails or takes too long."""
    if not which(command[0]):
        return ""
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.decode(errors="replace") if ran.returncode == 0 else ""
