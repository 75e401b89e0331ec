"""python -m recoverrun.keeper LISTENING_SOCKET LAUNCHER INCARNATION SECONDS MEMORY

The first two are descriptors: where others call, and the line to the launcher. It ends when it is
dismissed, or so many seconds after the last launcher has gone. MEMORY is a size, or a share of
what is free.
"""

import sys

# As for a worker: a file of the user must not stand in for a module that we import.
if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from recoverrun.keeper.callers_loop import run
from rendezvous.bays.allowance import read

if __name__ == "__main__":
    listening, launcher, incarnation = map(int, sys.argv[1:4])
    run(
        listening,
        launcher,
        incarnation=incarnation,
        linger_s=float(sys.argv[4]),
        allowance=read(sys.argv[5]),
    )
