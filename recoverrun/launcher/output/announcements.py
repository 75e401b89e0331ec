"""What a launcher announces on the console: how it began, then each loss and its recovery.

What is said of a loss is a function of the journal's records, so that the console never knows what
the journal does not.
"""

from pathlib import Path
from typing import cast

from recoverrun.config.run_config import RunConfig
from recoverrun.text import named_signals, plural, ranges, sanitize
from recoverrun.version import __version__
from rendezvous.protocol.effects import Json, Record
from rendezvous.protocol.formation_messages import Start

PHASES = ("agree", "rebuild", "redo", "reduce", "vote")
PLAIN = str.maketrans({"✖": "x", "⇄": "~", "·": "-", "✓": "ok"})


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


def announcement(record: Record, ascii_only: bool = False) -> str:
    """The line for the console, or "" for what only the journal needs to know."""
    line = _line(record)
    return sanitize(line.translate(PLAIN) if ascii_only else line)


def _line(record: Record) -> str:
    fields = record.fields
    match record.event:
        case "promise.state":
            return _promise(str(fields["promise"]), record.reason)
        case "replica.lost":
            ranks = ", ".join(str(rank) for rank in _list(fields["ranks"]))
            why = named_signals(record.reason)
            return f"✖ replica {fields['slot']} (ranks {ranks}) is lost: {why}"
        case "recovery.done":
            redone = plural(len(_list(fields["redone"])), "microbatch")
            phases = " · ".join(f"{name} {_ms(fields[f'{name}_ms'])}" for name in PHASES)
            total = _ms(fields["total_ms"])
            return f"⇄ {record.reason} ✓ {redone} redone, {total} ms in all ({phases})"
        case "leader.succeed":
            return f"⇄ {record.reason}"
        case "notice.give":
            rank = fields["rank"]
            return f"! {record.reason}" if rank == -1 else f"! rank {rank}: {record.reason}"
        case _:
            return ""


def _promise(promise: str, reason: str) -> str:
    if promise == "exact-samples":
        return "protected: lost microbatches will be made up with their own samples (exact-samples)"
    if promise == "equal-count":
        return f"protected, but with other samples for lost microbatches (equal-count): {reason}"
    return f"! not protected, a loss ends this run: {reason}"


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _ms(value: Json) -> str:
    return f"{cast(float, value):.0f}"
