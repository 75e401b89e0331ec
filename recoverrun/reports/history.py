"""A run's journal as typed facts: one pass over the records, no judgement.

`root_cause`, `postmortem` and `failure_report` judge; here a record becomes a value with the right
types or is left out. An *attempt* is the life of one set of processes: it ends where every worker
is gone and the job is started anew, after which steps may count from an older step again.
"""

from dataclasses import dataclass, field
from typing import Literal

from recoverrun.reports.commits import MOST, Commit, commit_of, identities_of, same_account
from rendezvous.journal.reader import Entry, RunLog
from rendezvous.protocol.messages import Identity

DeathKind = Literal["exit", "signal", "exception", "node-lost"]

PARTS = ("detect", "agree", "rebuild", "redo", "reduce", "vote")
"""Phases of a recovery, as the fields `<part>_ms` of recovery.done name them."""

RETOLD_MOST = 64
"""Commits behind the newest among which one that is told again is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of one worker, or of a node with all of its workers."""

    ts: float
    seq: int
    node: str  # that died, or on which it died
    rank: int  # -1: a node
    ranks: tuple[int, ...]
    pid: int
    kind: DeathKind
    code: int
    signal: int
    error: str
    reason: str
    ours: bool
    attempt: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    ts: float
    slot: int
    root_rank: int
    ranks: tuple[int, ...]
    generation: int
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    ts: float
    generation: int
    slots: tuple[int, ...]
    root_ranks: tuple[int, ...]
    step: int
    redone: int  # microbatches computed again
    identities: tuple[Identity, ...]  # of those, where the journal names them
    parts_ms: tuple[tuple[str, float], ...]
    total_ms: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChange:
    ts: float
    generation: int
    live: tuple[int, ...]
    lost_ranks: tuple[int, ...]
    attempt: int


@dataclass(slots=True)
class History:
    """What happened, in the order of the journal."""

    run_id: str = ""
    argv: tuple[str, ...] = ()
    world_size: int = 0
    nnodes: int = 0
    version: str = ""
    inject: str = ""
    strategy: str = ""
    promise: str = ""
    promise_reason: str = ""
    weakened: str = ""  # why, once the promise has come down to equal-count
    weakened_at: int = -1  # the first step of which that is true
    steered: str = ""  # by what a decision of the script may be another one since a loss
    steered_at: int = -1
    microbatches: int = 0  # per replica and step; 0 while unknown
    replicas: tuple[tuple[int, ...], ...] = ()
    attempts: int = 0
    began: float = 0.0
    latest: float = 0.0
    nodes: dict[int, str] = field(default_factory=dict)  # of every rank
    pids: dict[int, int] = field(default_factory=dict)  # newest of every rank
    alive: set[int] = field(default_factory=set)
    deaths: list[Death] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    views: list[ViewChange] = field(default_factory=list)
    breaks: list[Entry] = field(default_factory=list)
    digests: int = 0
    differing: list[int] = field(default_factory=list)  # steps
    ends: list[tuple[str, int, int, str]] = field(default_factory=list)  # node, code, root, reason
    killed: dict[int, frozenset[int]] = field(default_factory=dict)  # rank -> signals we sent
    incarnations: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, pid) -> it
    dropped: int = 0
    exits: set[tuple[int, int, int]] = field(default_factory=set)  # already recorded

    @property
    def exit_code(self) -> int | None:
        """The code that the nodes left with; None while no node has recorded an end."""
        codes = [code for _, code, _, _ in self.ends]
        return next((code for code in codes if code), 0) if codes else None

    @property
    def attempt(self) -> int:
        return max(0, self.attempts - 1)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(range(len(self.replicas)))

    def slot_of(self, rank: int) -> int:
        """The replica position of `rank`, -1 while the topology is unknown."""
        holders = (slot for slot, replica in enumerate(self.replicas) if rank in replica)
        return next(holders, -1)

    def add(self, entry: Entry) -> None:
        """Take in one record; a record that says nothing we can use changes nothing."""
        self.began = self.began or entry.ts
        self.latest = max(self.latest, entry.ts)
        handler = _HANDLERS.get(entry.event)
        if handler is not None:
            handler(self, entry)

    @property
    def promised(self) -> str:
        """What is promised by now, in a few words."""
        if self.weakened:
            return "equal-count"
        place = self.steered.partition(" at ")[2].partition(" is over ")[0]
        return f"{self.promise}; steered by {place}" if place else self.promise


def history(log: RunLog) -> History:
    facts = History()
    for entry in log.entries:
        facts.add(entry)
    return facts


def recovery_of(facts: History, loss: Loss) -> Recovery | None:
    """The first recovery that made this loss good."""
    return next(
        (
            recovery
            for recovery in facts.recoveries
            if loss.slot in recovery.slots
            and recovery.generation >= loss.generation
            and recovery.attempt == loss.attempt
        ),
        None,
    )


# --------------------------------------------------------------------------- one record each


def _run_start(facts: History, entry: Entry) -> None:
    argv = entry.fields.get("argv")
    facts.run_id = facts.run_id or entry.text("run_id")
    facts.argv = facts.argv or tuple(str(word) for word in (argv if isinstance(argv, list) else []))
    facts.world_size = max(facts.world_size, entry.integer("world_size", 0))
    facts.nnodes = max(facts.nnodes, entry.integer("nnodes", 0))
    facts.version = facts.version or entry.text("version")
    facts.inject = facts.inject or entry.text("inject")


def _run_end(facts: History, entry: Entry) -> None:
    end = (entry.node, entry.integer("exit_code", 1), entry.integer("root_rank"), entry.reason)
    facts.ends.append(end)


def _spawn(facts: History, entry: Entry) -> None:
    rank, pid = entry.integer("rank"), entry.integer("pid")
    if rank < 0:
        return
    if not facts.alive:
        facts.attempts += 1
    facts.alive.add(rank)
    facts.nodes[rank] = entry.node
    facts.pids[rank] = pid
    facts.incarnations[rank, pid] = entry.integer("incarnation", 0)
    facts.killed.pop(rank, None)


def _exit(facts: History, entry: Entry) -> None:
    rank, pid = entry.integer("rank"), entry.integer("pid")
    incarnation = facts.incarnations.get((rank, pid), entry.integer("incarnation", 0))
    key = (rank, pid, incarnation)
    if key in facts.exits:
        return
    facts.exits.add(key)
    facts.alive.discard(rank)
    code = entry.integer("code", 0)
    number = entry.integer("signal", 0) or max(0, -code)
    error = entry.text("error")
    kind: DeathKind = "signal" if number > 0 else "exception" if error else "exit"
    facts.deaths.append(
        Death(
            ts=entry.ts,
            seq=entry.seq,
            node=facts.nodes.get(rank, entry.node),
            rank=rank,
            ranks=(rank,),
            pid=pid,
            kind=kind,
            code=code,
            signal=max(0, number),
            error=error,
            reason=entry.reason,
            # The signal that we had sent is ours, whoever wrote the record of the end.
            ours=entry.flag("ours") or number in facts.killed.get(rank, ()),
            attempt=facts.attempt,
            incarnation=incarnation,
        )
    )


def _kill(facts: History, entry: Entry) -> None:
    sent = {"SIGTERM": {15}, "SIGKILL": {9}, "": {9, 15}}.get(entry.text("signal"), set())
    for rank in entry.integers("ranks"):
        if rank in facts.alive:
            facts.killed[rank] = facts.killed.get(rank, frozenset()) | sent


def _node_lost(facts: History, entry: Entry) -> None:
    name = entry.text("name")
    here = tuple(sorted(rank for rank, node in facts.nodes.items() if node == name))
    lost = entry.integers("ranks") or here
    facts.alive -= set(lost)
    facts.deaths.append(
        Death(
            ts=entry.ts,
            seq=entry.seq,
            node=name or next((facts.nodes[rank] for rank in lost if rank in facts.nodes), "?"),
            rank=-1,
            ranks=lost,
            pid=-1,
            kind="node-lost",
            code=0,
            signal=0,
            error="",
            reason=entry.reason,
            ours=False,
            attempt=facts.attempt,
            incarnation=0,
        )
    )


def _topology(facts: History, entry: Entry) -> None:
    facts.strategy = entry.text("strategy")
    raw = entry.fields.get("replicas")
    replicas = [
        tuple(rank for rank in replica if isinstance(rank, int))
        for replica in (raw if isinstance(raw, list) else [])
        if isinstance(replica, list)
    ]
    if replicas and all(replicas):
        facts.replicas = tuple(replicas)


def _notice(facts: History, entry: Entry) -> None:
    if entry.text("event") == "promise.weaken" and not facts.weakened:
        facts.weakened = entry.reason
        facts.weakened_at = facts.commits[-1].step + 1 if facts.commits else 0
    elif entry.text("event") == "promise.steer" and not facts.steered:
        facts.steered = entry.reason
        facts.steered_at = facts.commits[-1].step + 1 if facts.commits else 0


def _promise(facts: History, entry: Entry) -> None:
    facts.promise = entry.text("promise")
    facts.promise_reason = entry.reason
    count = entry.integer("microbatches", 0)
    facts.microbatches = count if 0 <= count <= MOST else 0


def _view(facts: History, entry: Entry) -> None:
    facts.views.append(
        ViewChange(
            ts=entry.ts,
            generation=entry.integer("generation"),
            live=entry.integers("live"),
            lost_ranks=entry.integers("lost_ranks"),
            attempt=facts.attempt,
        )
    )


def _loss(facts: History, entry: Entry) -> None:
    facts.losses.append(
        Loss(
            ts=entry.ts,
            slot=entry.integer("slot"),
            root_rank=entry.integer("root_rank"),
            ranks=entry.integers("ranks"),
            generation=entry.integer("generation"),
            reason=entry.reason,
            attempt=facts.attempt,
        )
    )


def _recovery(facts: History, entry: Entry) -> None:
    again = identities_of(entry.fields.get("redone"))
    facts.recoveries.append(
        Recovery(
            ts=entry.ts,
            generation=entry.integer("generation"),
            slots=entry.integers("slots"),
            root_ranks=entry.integers("root_ranks"),
            step=entry.integer("step"),
            redone=entry.integer("redone", len(again)),
            identities=again,
            parts_ms=tuple((part, entry.number(f"{part}_ms")) for part in PARTS),
            total_ms=entry.number("total_ms"),
            attempt=facts.attempt,
        )
    )


def _commit(facts: History, entry: Entry) -> None:
    commit = commit_of(entry, facts.attempt)
    for place in range(len(facts.commits) - 1, max(-1, len(facts.commits) - RETOLD_MOST), -1):
        if same_account(facts.commits[place], commit):
            # Told again by a coordinator that took over. Who saw more knows better.
            if len(commit.inferred) < len(facts.commits[place].inferred):
                facts.commits[place] = commit
            return
    facts.commits.append(commit)


def _break(facts: History, entry: Entry) -> None:
    facts.breaks.append(entry)


def _digest(facts: History, entry: Entry) -> None:
    facts.digests += 1
    if entry.event == "digest.differ":
        facts.differing.append(entry.integer("step"))


def _drop(facts: History, entry: Entry) -> None:
    facts.dropped += max(0, entry.integer("records", 0))


_HANDLERS = {
    "run.start": _run_start,
    "run.end": _run_end,
    "worker.spawn": _spawn,
    "worker.exit": _exit,
    "worker.kill": _kill,
    "node.lost": _node_lost,
    "topology.learn": _topology,
    "promise.state": _promise,
    "notice.give": _notice,
    "view.change": _view,
    "replica.lost": _loss,
    "recovery.done": _recovery,
    "step.commit": _commit,
    "invariant.break": _break,
    "digest.agree": _digest,
    "digest.differ": _digest,
    "journal.drop": _drop,
}
