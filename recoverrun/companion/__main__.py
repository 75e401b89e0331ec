"""`python -m recoverrun.companion PID`, as the launcher with that pid starts it."""

import signal
import sys

from recoverrun.companion.companion_loop import follow

if __name__ == "__main__":
    # The launcher decides when a run is over; ctrl-c reaches it, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow(int(sys.argv[1]), sys.stdin.fileno())
