"""What a launcher says before its workers run: how it began, or what it waits for."""

from pathlib import Path

from recoverrun import __version__
from recoverrun.config import RunConfig
from recoverrun.text import plural, ranges
from rendezvous.messages import Start

STRANGERS_MOST = 3
"""Handshakes that may fail in a row before the other end counts as no launcher."""

ANSWER_S = 5.0
"""What the node that forms the job may need longer than us to notice that its time is over."""


def waiting(config: RunConfig) -> str:
    """For a job of several nodes, before it is complete."""
    return f"recoverrun {__version__} · {config.nnodes} nodes meet at {config.endpoint}"


def spare(config: RunConfig) -> str:
    """For a launcher that came when the job was complete."""
    return f"the job has all of its {plural(config.nnodes, 'node')}: this one waits as a spare"


def hopeless(config: RunConfig, waited_s: float, strangers: int, *, known: bool) -> str:
    """Why there is no use in waiting for the job to form any longer, or "".

    `strangers`: handshakes that failed in a row; `known`: whether a launcher ever answered.
    """
    endpoint = config.endpoint
    if not known and strangers >= STRANGERS_MOST:
        return (
            f"what answers at {endpoint} is not a recoverrun rendezvous: it speaks another protocol"
        )
    # Whoever answered knows best how many are missing, and says so.
    patience_s = config.join_timeout_s + (ANSWER_S if known else 0.0)
    if waited_s < patience_s:
        return ""
    return (
        f"nobody answered at {endpoint} within {patience_s:g} s: is the launcher with node rank 0 "
        f"running, and is this its address?"
    )


def starting(config: RunConfig, start: Start, run_dir: Path) -> str:
    """Version, ranks, run directory, and what is out of the ordinary."""
    ranks = ranges(range(start.first_rank, start.first_rank + start.nproc))
    place = f"node {start.node_rank} of {start.nnodes}: ranks {ranks} of {start.world_size}"
    parts = [
        f"recoverrun {__version__}",
        plural(start.nproc, "rank") if start.nnodes == 1 else place,
        str(run_dir),
        *([f"OMP_NUM_THREADS={config.threads}"] if config.threads else []),
        *(["recovery off"] if not config.protect else []),
        *([f"faults {config.inject}"] if config.inject else []),
    ]
    return " · ".join(parts)
