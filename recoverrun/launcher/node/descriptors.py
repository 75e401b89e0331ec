"""The descriptors that a launcher and its workers open, against the limit that they have.

Counted in /proc of jobs with gloo: a launcher of one node had 27, 32, 37 and 42 for one to four
workers, a worker 29 alone and 37, 41 and 45 in jobs of two to four ranks. Below the launcher's
number ZeroMQ aborts it. Below the worker's the collectives of a script may find no peer, but a
script without any needs fewer. With launchers of other nodes one had 9, 16 and 22 more in jobs of
two to four nodes.
"""

import resource

from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode

LAUNCHER, EACH_WORKER = 22, 5
OTHERS, EACH_NODE = 4, 6
WORKER, EACH_PEER = 33, 4


def launcher_needs(workers: int, nodes: int) -> int:
    """The descriptors that a launcher opens, with so many `workers`, in a job of `nodes`."""
    others = OTHERS + EACH_NODE * (nodes - 1) if nodes > 1 else 0
    return LAUNCHER + EACH_WORKER * workers + others


def worker_needs(ranks: int) -> int:
    """The descriptors that a worker opens for collectives of so many `ranks`; alone it has none."""
    return WORKER + EACH_PEER * (ranks - 1) if ranks > 1 else 0


def check_limits(limits: tuple[int, int], workers: int, nodes: int) -> tuple[str, ...]:
    """Warnings about the soft and the hard limit: a launcher raises its own to the hard one, and
    workers, of which each of `nodes` has so many, keep the soft one.

    Raises RecoverrunError where the launcher itself cannot work.
    """
    (soft, hard), ranks = limits, workers * nodes
    bounded = hard != resource.RLIM_INFINITY
    alone, own = launcher_needs(workers, 1), launcher_needs(workers, nodes)
    if bounded and hard < alone:
        sentence = f"a launcher opens {alone} descriptors here, and the limit is {hard} (ulimit -n)"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    found = []
    if bounded and hard < own:
        found.append(
            f"a launcher among {nodes} nodes opens {own} descriptors, and the limit is {hard}"
        )
    if soft != resource.RLIM_INFINITY and soft < worker_needs(ranks):
        words = f"a worker among {ranks} ranks opens {worker_needs(ranks)} descriptors for its"
        found.append(f"{words} collectives, and the limit is {soft}")
    return tuple(f"{words} (ulimit -n): they may fail" for words in found)
