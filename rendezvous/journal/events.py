"""What a journal records: each kind of record, and the fields without which it states nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

FORMAT = 1
"""`v` of each line. A reader refuses lines of a higher format instead of misreading them."""


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of record: what it states, and the fields without which it states nothing."""

    meaning: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


EVENTS: Mapping[str, Event] = {
    "run.start": Event(
        "A launcher begins a run.",
        ("run_id", "argv", "world_size", "nnodes", "version", "inject"),
        ("nodes", "min_replicas", "pid"),
    ),
    "run.end": Event("The run is over on this node.", ("exit_code", "root_rank")),
    "job.restart": Event(
        "An attempt is over; all ranks start again.",
        ("attempt", "restarts", "root_rank"),
        ("of",),
    ),
    "node.join": Event("A node takes part with `nproc` workers.", ("nproc",), ("name",)),
    "leader.elect": Event("A quorum of launchers follows this one.", ("round",)),
    "leader.succeed": Event("The coordinator is here now.", ("tenure",)),
    "roll.decide": Event("These launchers take part, in this order.", ("number", "nodes")),
    "node.lost": Event("A node is silent or gone.", (), ("name", "ranks")),
    "worker.spawn": Event("A worker process was started.", ("rank", "pid", "incarnation")),
    "worker.hello": Event("The hooks are installed in a worker.", ("rank", "torch")),
    "worker.exit": Event(
        "The kernel said that a worker is gone; `ours`: we had sent it the signal.",
        ("rank", "pid", "code", "signal", "ours", "error"),
        ("incarnation", "detect_ms"),
    ),
    "worker.kill": Event("We send these ranks a signal: kill ledger.", ("ranks",), ("signal",)),
    "topology.learn": Event("The script's process groups show replicas.", ("strategy", "replicas")),
    "promise.state": Event("What this run promises about a loss.", ("promise", "microbatches")),
    "view.change": Event("A new generation.", ("generation", "live", "lost_ranks")),
    "replica.lost": Event("A replica has left.", ("slot", "root_rank", "ranks", "generation")),
    "decision.make": Event(
        "What becomes of a step after a loss.", ("generation", "step", "verdict", "targets")
    ),
    "step.commit": Event(
        "A step is applied. `done` is present only where it differs from the home layout.",
        ("step", "generation", "quota", "redone", "microbatches", "total", "ms"),
        ("done",),
    ),
    "recovery.done": Event(
        "Losses are made good; the times of its parts.",
        (
            "generation",
            "slots",
            "root_ranks",
            "step",
            "redone",
            "detect_ms",
            "agree_ms",
            "rebuild_ms",
            "redo_ms",
            "reduce_ms",
            "vote_ms",
            "total_ms",
        ),
    ),
    "invariant.break": Event("An invariant does not hold; the job stops.", ("invariant",)),
    "notice.give": Event("A worker tells something worth reading once.", ("rank",), ("event",)),
    "fault.hint": Event("A collective failed on a rank: a hint, not a verdict.", ("rank",)),
    "digest.agree": Event("All replicas held the same parameters at a step.", ("step",)),
    "digest.differ": Event(
        "Replicas held different parameters at a step; `ranks` are those that differ from most.",
        ("step",),
        ("ranks",),
    ),
    "journal.drop": Event("Records that could not be written before this one.", ("records",)),
}


DURABLE = frozenset({"replica.lost", "node.lost", "run.end"})
"""Records worth an fsync: they are rare, and they are what a crashed machine is asked about."""


ENVELOPE = frozenset({"v", "ts", "mono", "seq", "node", "ev", "reason"})
