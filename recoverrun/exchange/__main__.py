"""python -m recoverrun.exchange LAUNCHER KEEPER

The first is a descriptor, the line to the launcher, with whose end it ends; the second the path of
the keeper's socket.
"""

import sys

# As for a worker: a file of the user must not stand in for a module that we import.
if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from recoverrun.exchange.exchange_loop import run

if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2])
