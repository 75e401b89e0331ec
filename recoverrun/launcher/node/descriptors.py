"""The descriptors that a launcher and its workers open, against the limit that they have.

Counted in /proc of jobs with gloo: a launcher of one node had 27, 32, 37 and 42 for one to four
workers, a worker 29 alone and 37, 41 and 45 in jobs of two to four ranks. Below the launcher's
number ZeroMQ aborts it. Below the worker's the collectives of a script may find no peer, but a
script without any needs fewer.
"""

import resource

from recoverrun.errors import ExitCode, RecoverrunError

LAUNCHER, EACH_WORKER = 22, 5
WORKER, EACH_PEER = 33, 4


def check_limit(limit: int, workers: int, ranks: int) -> tuple[str, ...]:
    """Warnings about this limit, where `workers` of `ranks` are here.

    Raises RecoverrunError where the launcher itself cannot work.
    """
    if limit == resource.RLIM_INFINITY:
        return ()
    own, each = LAUNCHER + EACH_WORKER * workers, WORKER + EACH_PEER * (ranks - 1)
    if limit < own:
        sentence = f"a launcher opens {own} descriptors here, and the limit is {limit} (ulimit -n)"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    if ranks > 1 and limit < each:
        words = f"a worker among {ranks} ranks opens {each} descriptors for its collectives"
        return (f"{words}, and the limit is {limit} (ulimit -n): they may fail",)
    return ()
