"""python -u -m recoverrun.worker [-m] SCRIPT [ARGUMENT ...]

With `--spare FD` in the place of the script it is told later what it runs (see `boot.spare`).
"""

import sys

# `-m` put the working folder first, where a plain script would not have it: a file of the user
# there must not stand in for a module that we import. Last, it still serves a source checkout.
_implied_path = None if sys.flags.safe_path else sys.path.pop(0)
if _implied_path is not None:
    sys.path.append(_implied_path)

from recoverrun.worker.boot import run_script, worker  # noqa: E402

if __name__ == "__main__":
    if sys.argv[1:2] == ["--spare"]:
        from recoverrun.worker.boot import spare

        arguments, start = spare.wait(int(sys.argv[2]), worker.start)
        run_script.main(arguments, start=start, implied_path=_implied_path)
    else:
        run_script.main(sys.argv[1:], start=worker.start, implied_path=_implied_path)
