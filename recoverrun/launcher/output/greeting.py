"""What a launcher says before its workers run: how it began, or what it waits for."""

from pathlib import Path

from recoverrun.config.run_config import RunConfig
from recoverrun.text import plural, ranges
from recoverrun.version import __version__
from rendezvous.protocol.messages import Start


def waiting(config: RunConfig) -> str:
    """For a job of several nodes, before it is complete."""
    return f"recoverrun {__version__} · {config.nnodes} nodes meet at {config.endpoint}"


def spare(config: RunConfig) -> str:
    """For a launcher that came when the job was complete."""
    return f"the job has all of its {plural(config.nnodes, 'node')}: this one waits as a spare"


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
