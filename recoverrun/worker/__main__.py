"""python -u -m recoverrun.worker [-m] SCRIPT [ARGUMENT ...]

With `--spare FD` in the place of the script it is told later what it runs (see `boot.spare`).
"""

import sys

# `-m` put the working folder first, where a plain script would not have it: a file of the user
# there must not stand in for a module that we import. Last, it still serves a source checkout.
_implied_path = None if sys.flags.safe_path else sys.path.pop(0)
if _implied_path is not None:
    sys.path.append(_implied_path)

from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

from recoverrun.worker.boot import run_script, worker  # noqa: E402


def _assemble(*parts: Any) -> Any:
    """See `boot.worker.Assemble`."""
    # Only now: its imports take as long as all else before the script's first line.
    from recoverrun.worker.boot.assembly import assemble

    return assemble(*parts)


if __name__ == "__main__":
    start = partial(worker.start, assemble=_assemble)
    if sys.argv[1:2] == ["--spare"]:
        from recoverrun.worker.boot import spare

        arguments, start_later = spare.wait(int(sys.argv[2]), start)
        run_script.main(arguments, start=start_later, implied_path=_implied_path)
    else:
        run_script.main(sys.argv[1:], start=start, implied_path=_implied_path)
