"""A run's journal as typed facts: one pass over the records, no judgement.

`root_cause`, `postmortem` and `failure_report` judge; here a record becomes a value with the right
types or is left out. An *attempt* is the life of one set of processes: it ends where every worker
is gone and the job is started anew, after which steps may count from an older step again.
"""

from dataclasses import dataclass, field

from recoverrun.reports.commits import Commit, commit_of
from recoverrun.reports.happenings import Death, DeathKind, End, Loss, Recovery, ViewChange
from recoverrun.reports.joined_account import enter, take
from recoverrun.reports.recoveries import recovery_in
from recoverrun.reports.returns import ON_NO_LIFE, Returns
from recoverrun.reports.steps_back import StepsBack
from recoverrun.reports.time_book import TimeBook
from rendezvous.journal.reader import Entry, RunLog
from rendezvous.protocol.exit_codes import code_of_job
from rendezvous.protocol.incarnations import birth_of
from rendezvous.protocol.messages import UNSAID
from rendezvous.protocol.records import PART


@dataclass(slots=True)
class History:
    """The happenings of a run, in the order of the journal."""

    run_id: str = ""
    folder: str = ""  # the name of the run, within which all nodes have theirs
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
    returns: Returns = field(default_factory=Returns)
    steps_back: StepsBack = field(default_factory=StepsBack)
    time: TimeBook = field(default_factory=TimeBook)
    views: list[ViewChange] = field(default_factory=list)
    breaks: list[Entry] = field(default_factory=list)
    digests: int = 0
    differing: list[int] = field(default_factory=list)  # steps at which nobody had a majority
    outvoted: dict[int, int] = field(default_factory=dict)  # rank -> step at which it was
    ends: list[End] = field(default_factory=list)
    killed: dict[int, frozenset[int]] = field(default_factory=dict)  # rank -> signals we sent
    incarnations: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, pid) -> it
    missing: int = 0  # records that the disk did not take
    missing_from: int = -1  # the step under way at the first of them
    cut_off: bool = False  # no record has come since the last that said so
    exits: set[tuple[int, int, int]] = field(default_factory=set)  # already recorded

    @property
    def exit_code(self) -> int | None:
        """The job's; None while no node has recorded an end. A node that had left is not asked."""
        return code_of_job([end.code for end in self.ends])

    @property
    def attempt(self) -> int:
        return max(0, self.attempts - 1)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(range(len(self.replicas)))

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """Replicas of which no rank is on a node whose journal is here."""
        slots = enumerate(self.replicas)
        return tuple(slot for slot, members in slots if not self.nodes.keys() & set(members))

    def incarnation_of(self, rank: int) -> int:
        """The incarnation of the newest process of `rank`, as far as the journal shows."""
        return self.incarnations.get((rank, self.pids.get(rank, -1)), 0)

    def lost_at(self, slot: int) -> float:
        """The time of a replica's last loss in this attempt, 0 unknown."""
        mine = (one for one in self.losses if (one.attempt, one.slot) == (self.attempt, slot))
        return max((one.ts for one in mine), default=0.0)

    def slot_of(self, rank: int) -> int:
        """The replica position of `rank`, -1 while the topology is unknown."""
        holders = (slot for slot, replica in enumerate(self.replicas) if rank in replica)
        return next(holders, -1)

    def add(self, entry: Entry) -> None:
        """Take in one record; a record that says nothing we can use changes nothing."""
        self.began = self.began or entry.ts
        self.latest = max(self.latest, entry.ts)
        self.cut_off = entry.event == "journal.drop"
        self.steps_back.add(entry)
        handler = _HANDLERS.get(entry.event)
        if handler is not None:
            handler(self, entry)
        self.time.take(entry, self.attempt, len(self.replicas))

    @property
    def promised(self) -> str:
        """The present promise, in a few words."""
        if self.weakened:
            return "equal-count"
        place = self.steered.partition(" at ")[2].partition(" is ")[0]
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
    facts.folder = facts.folder or entry.text("folder") or entry.text("run_id")
    facts.argv = facts.argv or tuple(str(word) for word in (argv if isinstance(argv, list) else []))
    facts.world_size = max(facts.world_size, entry.integer("world_size", 0))
    facts.nnodes = max(facts.nnodes, entry.integer("nnodes", 0))
    facts.version = facts.version or entry.text("version")
    facts.inject = facts.inject or entry.text("inject")
    facts.ends = [end for end in facts.ends if end.node != entry.node]  # it had left, and is back


def _run_end(facts: History, entry: Entry) -> None:
    code, root = entry.integer("exit_code", 1), entry.integer("root_rank")
    where, why = entry.text("root_node"), entry.reason
    facts.ends.append(End(node=entry.node, code=code, root_rank=root, root_node=where, reason=why))


def _spawn(facts: History, entry: Entry) -> None:
    rank, pid = entry.integer("rank"), entry.integer("pid")
    if rank < 0:
        return
    incarnation = entry.integer("incarnation", 0)
    if not facts.alive and not birth_of(max(0, incarnation)):
        facts.attempts += 1
    facts.alive.add(rank)
    facts.nodes[rank] = entry.node
    facts.pids[rank] = pid
    facts.incarnations[rank, pid] = max(0, incarnation)
    facts.killed.pop(rank, None)


def _exit(facts: History, entry: Entry) -> None:
    rank, pid = entry.integer("rank"), entry.integer("pid")
    incarnation = facts.incarnations.get((rank, pid), max(0, entry.integer("incarnation", 0)))
    life = facts.returns.life_of(rank, incarnation)
    key = (rank, pid, incarnation)
    if key in facts.exits:
        return
    facts.exits.add(key)
    facts.alive.discard(rank)
    code = entry.integer("code", 0)
    number = entry.integer("signal", 0) or max(0, -code)
    error = entry.text("error")
    kind: DeathKind = "signal" if number > 0 else "exception" if error else "exit"
    death = Death(
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
        life=life,
        failed_at=entry.ts - max(0.0, entry.number("age_ms")) / 1000,
        starved=entry.flag("oom"),
    )
    if life == ON_NO_LIFE:
        facts.returns.end(death, facts.slot_of(rank))
    else:
        facts.deaths.append(death)


def _hang(facts: History, entry: Entry) -> None:
    """A rank that lives is given up: that is the fault, and its end is our doing."""
    rank = entry.integer("rank")
    incarnation = facts.incarnation_of(rank)
    facts.deaths.append(
        Death(
            ts=entry.ts,
            seq=entry.seq,
            node=facts.nodes.get(rank, entry.node),
            rank=rank,
            ranks=(rank,),
            pid=facts.pids.get(rank, -1),
            kind="hang",
            failed_at=entry.ts - max(0.0, entry.number("lag_s")),
            code=0,
            signal=0,
            error=entry.text("where"),
            reason=entry.reason,
            ours=False,
            attempt=facts.attempt,
            incarnation=incarnation,
            life=max(0, facts.returns.life_of(rank, incarnation)),
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
    name = name or next((facts.nodes[rank] for rank in lost if rank in facts.nodes), "?")
    told = [(one.kind, one.node, one.reason, one.attempt) for one in facts.deaths]
    again = facts.alive.intersection(lost)  # it has come back since, if it was lost before
    if not again and ("node-lost", name, entry.reason, facts.attempt) in told:
        return  # Another node has told of it, too.
    facts.alive -= set(lost)
    facts.deaths.append(
        Death(
            ts=entry.ts, seq=entry.seq, node=name, rank=-1, ranks=lost, pid=-1, kind="node-lost",
            code=0, signal=0, error="", reason=entry.reason, ours=False, attempt=facts.attempt,
            incarnation=0, failed_at=entry.ts - max(0.0, entry.number("silent_s")),
        )
    )  # fmt: skip


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
    event, step = entry.text("event"), facts.commits[-1].step + 1 if facts.commits else 0
    if event == "promise.weaken" and (not facts.weakened or facts.weakened.endswith(UNSAID)):
        facts.weakened, facts.weakened_at = entry.reason, step
    elif event == "promise.steer" and not facts.steered:
        facts.steered, facts.steered_at = entry.reason, step


def _promise(facts: History, entry: Entry) -> None:
    if entry.flag(PART) and facts.promise:
        return  # The coordinator's is that of all ranks.
    facts.promise, facts.promise_reason = entry.text("promise"), entry.reason
    if facts.promise != "unprotected" or not facts.microbatches:  # else of a later step, as it came
        facts.microbatches = max(0, entry.integer("microbatches", 0))


def _view(facts: History, entry: Entry) -> None:
    view = ViewChange(
        ts=entry.ts,
        generation=entry.integer("generation"),
        live=entry.integers("live"),
        lost_ranks=entry.integers("lost_ranks"),
        attempt=facts.attempt,
        part=entry.flag(PART),
    )
    take(facts.views, view, lambda one: (one.attempt, one.generation))


def _loss(facts: History, entry: Entry) -> None:
    loss = Loss(
        ts=entry.ts,
        slot=entry.integer("slot"),
        root_rank=entry.integer("root_rank"),
        ranks=entry.integers("ranks"),
        generation=entry.integer("generation"),
        reason=entry.reason,
        attempt=facts.attempt,
        life=facts.returns.life(facts.attempt, entry.integer("slot")),
        part=entry.flag(PART),
    )
    take(facts.losses, loss, lambda one: (one.attempt, one.generation, one.slot))
    facts.returns.lose(loss.attempt, loss.slot, loss.generation)


def _return(facts: History, entry: Entry) -> None:
    """A lost replica is on its way back, takes part again, or is back."""
    returns, attempt, lost = facts.returns, facts.attempt, facts.lost_at(entry.integer("slot"))
    if entry.event == "replica.return":
        views, of = facts.views[-1:], facts.replicas
        returns.come(entry, attempt, lost, facts.incarnation_of, views=views, of=of)
    else:
        returns.hear(entry, attempt, lost, facts.slot_of(entry.integer("rank")))


def _recovery(facts: History, entry: Entry) -> None:
    recovery = recovery_in(entry, facts.attempt)
    take(facts.recoveries, recovery, lambda one: (one.attempt, one.generation, one.step))


def _commit(facts: History, entry: Entry) -> None:
    enter(facts.commits, commit_of(entry, facts.attempt, facts.commits[-1:]))


def _break(facts: History, entry: Entry) -> None:
    facts.breaks.append(entry)


def _digest(facts: History, entry: Entry) -> None:
    facts.digests += 1
    if entry.event == "digest.differ" and entry.flag("outvoted"):
        facts.outvoted |= dict.fromkeys(entry.integers("ranks"), entry.integer("step"))
    elif entry.event == "digest.differ":
        facts.differing.append(entry.integer("step"))


def _drop(facts: History, entry: Entry) -> None:
    if not facts.missing:
        newest = facts.commits[-1].step + 1 if facts.commits else -1
        facts.missing_from = max(entry.integer("step"), newest)
    facts.missing += max(0, entry.integer("records", 0))


_HANDLERS = {
    "run.start": _run_start,
    "run.end": _run_end,
    "worker.spawn": _spawn,
    "worker.exit": _exit,
    "worker.kill": _kill,
    "hang.condemn": _hang,
    "node.lost": _node_lost,
    "topology.learn": _topology,
    "promise.state": _promise,
    "notice.give": _notice,
    "view.change": _view,
    "replica.lost": _loss,
    "replica.start": _return,
    "replica.ready": _return,
    "replica.invite": _return,
    "replica.return": _return,
    "replica.parts": _return,
    "replica.prove": _return,
    "worker.hello": _return,
    "recovery.done": _recovery,
    "step.commit": _commit,
    "step.part": _commit,
    "invariant.break": _break,
    "digest.agree": _digest,
    "digest.differ": _digest,
    "journal.drop": _drop,
}
