"""The kinds of records in a journal, and the fields without which each states nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

FORMAT = 2
"""`v` of each full line. A reader refuses lines of a higher format instead of misreading them.

2: a step in which nothing changes is a short line (`step_lines`).
"""


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
        ("nodes", "min_replicas", "pid", "folder"),
    ),
    "run.end": Event(
        "The run is over on this node; the coordinator holds the root rank to be the cause.",
        ("exit_code", "root_rank"),
        ("root_node",),
    ),
    "job.wait": Event("A job that forms lacks nodes."),
    "job.restart": Event(
        "An attempt is over; all ranks start again.",
        ("attempt", "restarts", "root_rank"),
        ("of",),
    ),
    "node.join": Event("A node takes part with `nproc` workers.", ("nproc",), ("name",)),
    "leader.elect": Event("A quorum of launchers follows this one.", ("round",)),
    "leader.succeed": Event("The coordinator is here now.", ("tenure",), ("place", "former")),
    "roll.decide": Event("These launchers take part, in this order.", ("number", "nodes")),
    "node.lost": Event("A node is silent or gone.", (), ("name", "ranks", "silent_s")),
    "worker.spawn": Event("A worker process was started.", ("rank", "pid", "incarnation")),
    "keeper.spawn": Event("A keeper of snapshots was started.", ("pid",)),
    "keeper.exit": Event("The kernel said that the keeper is gone.", ("pid", "code")),
    "snapshot.whole": Event(
        "Each rank has its part of a snapshot in memory.", ("attempt", "step", "bytes"), ("ms",)
    ),
    "snapshot.safe": Event(
        "All ranks can go back to this snapshot, whatever is lost: of each group `parity` nodes.",
        ("attempt", "step"),
        ("parity",),
    ),
    "snapshot.parity": Event(
        "The parity of what all ranks went back to stands on all nodes again.", ("attempt", "step")
    ),
    "snapshot.degraded": Event(
        "A snapshot has no parity: it does not survive the loss of a node.", ("attempt", "step")
    ),
    "snapshot.plan": Event(
        "All ranks go back to the top of `step`, as it was in attempt `of`; `back` steps are done "
        "again.",
        ("attempt", "of", "step"),
        ("back",),
    ),
    "snapshot.restored": Event(
        "All ranks stand there again. `away_ms`: since the loss was known; `end_ms` of it until "
        "all joined again, `state_ms` for the state. `rebuilt`: ranks whose part others had.",
        ("attempt", "of", "step", "away_ms", "end_ms", "state_ms"),
        ("rebuilt",),
    ),
    "drain.begin": Event("The job is to end, and a snapshot is to be on the disk first.", ()),
    "snapshot.persisted": Event(
        "All parts of a safe snapshot are on the disk of `--snapshot-dir`.",
        ("attempt", "step", "bytes", "ms"),
    ),
    "worker.hello": Event("The hooks are installed in a worker.", ("rank", "torch")),
    "worker.exit": Event(
        "The kernel said that a worker is gone; `ours`: we had sent it the signal, `oom`: the "
        "kernel had, for want of memory.",
        ("rank", "pid", "code", "signal", "ours", "error"),
        ("incarnation", "detect_ms", "age_ms", "oom"),
    ),
    "worker.kill": Event("We send these ranks a signal: kill ledger.", ("ranks",), ("signal",)),
    "topology.learn": Event("The script's process groups show replicas.", ("strategy", "replicas")),
    "promise.state": Event(
        "What this run promises about a loss. `script_step`: the script's own number of the first "
        "step, `script_steps`: so many there will be from there on; as far as its loops show them.",
        ("promise", "microbatches"),
        ("script_step", "script_steps"),
    ),
    "view.change": Event(
        "A new generation. `joined` are ranks that take part again from `step` on.",
        ("generation", "live", "lost_ranks"),
        ("joined", "step"),
    ),
    "replica.lost": Event(
        "A replica has left; `inherited`: it left a coordinator that is lost, too, and this one "
        "finishes the step.",
        ("slot", "root_rank", "ranks", "generation"),
        ("inherited",),
    ),
    "replica.start": Event(
        "The processes of a lost replica are started again; `number`: so often within an hour.",
        ("slot", "ranks", "number"),
    ),
    "replica.ready": Event("All of its processes stand before their loop.", ("slot", "ranks")),
    "replica.invite": Event(
        "Members stop at the top of a step, for these replicas to take part.",
        ("slots", "ranks", "generation"),
    ),
    "replica.return": Event(
        "A replica takes part again from the top of `step` on. `wait_ms`: since it was ready; "
        "`hold_ms`: since the first member stood there.",
        ("slot", "ranks", "step"),
        ("wait_ms", "hold_ms"),
    ),
    "replica.prove": Event(
        "Its first step, `step`, is committed: others have compared what it computed. It is back.",
        ("slot", "ranks", "step"),
    ),
    "replica.parts": Event(
        "A rank that came back has committed its first step. `transfer_ms`: until it had the "
        "state, `bytes` from rank `source`; `place_ms`: until all was in place; `first_ms`: the "
        "step.",
        ("rank", "step", "transfer_ms", "place_ms", "first_ms", "bytes", "source"),
    ),
    "decision.make": Event(
        "What becomes of a step after a loss.", ("generation", "step", "verdict", "targets")
    ),
    "step.commit": Event(
        "A step is applied. `done` is present only where it differs from the home layout.",
        ("step", "generation", "quota", "redone", "microbatches", "total", "ms"),
        ("done",),
    ),
    "step.part": Event(
        "The same as far as the workers of one node tell it, where another node coordinates.",
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
        ("total", "live", "of"),
    ),
    "invariant.break": Event("An invariant does not hold; the job stops.", ("invariant",)),
    "notice.give": Event("A worker tells something worth reading once.", ("rank",), ("event",)),
    "fault.hint": Event("A collective failed on a rank: a hint, not a verdict.", ("rank",)),
    "hang.suspect": Event(
        "A rank keeps others waiting beyond the limit of its phase.",
        ("hang", "rank", "step", "phase", "lag_s", "waiting"),
        ("limit_s",),
    ),
    "hang.clear": Event("A suspect goes on.", ("hang", "rank", "lag_s")),
    "hang.condemn": Event(
        "A rank hangs: its replica goes. `where` it stands; `proof` of that it will not go on.",
        ("hang", "rank", "step", "phase", "lag_s", "where", "proof"),
    ),
    "hang.stick": Event("All ranks have joined an operation that does not end.", ("lag_s",)),
    "hang.part": Event("Ranks wait for each other in different operations.", ("hang", "lag_s")),
    "hang.quiet": Event("No rank has moved for long.", ("hang", "step", "quiet_s")),
    "straggler.find": Event(
        "A rank makes all others wait, in each step.",
        ("step", "rank", "score", "lag_ms", "kind"),
    ),
    "straggler.clear": Event("It does so no more.", ("step", "rank")),
    "time.spend": Event(
        "What the last `steps` steps spent beside computing, as far as all ranks had to wait.",
        ("step", "steps", "data_ms", "alone_ms", "imbalance_ms"),
        ("checkpoint_ms",),
    ),
    "digest.agree": Event("All replicas held the same parameters at a step.", ("step",)),
    "digest.differ": Event(
        "Replicas held different parameters at a step; `ranks` are those that differ from most. "
        "They leave if they are `outvoted`: more than half agree.",
        ("step",),
        ("ranks", "outvoted"),
    ),
    "journal.drop": Event(
        "Records are missing here: the disk took none. `since`: the time of the first of them; "
        "`step`: the step then under way, -1 where this node knows of no steps.",
        ("records",),
        ("since", "step"),
    ),
}


ESSENTIAL = frozenset({"replica.lost", "node.lost", "run.end"})
"""Records worth an fsync, the room that is kept for them on a full disk, and a place in a full
queue: they are rare, and they are what a crashed machine is asked about."""


ENVELOPE = frozenset({"v", "ts", "mono", "seq", "node", "ev", "reason"})
