"""What a run is doing now, from the journal as far as it has been read.

`Watch` takes in new records and gives a frozen `Status` for any instant; it keeps a bounded number
of steps, so a screen can follow a run for weeks. Pure: the instant and the time zone are given.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal

from recoverrun.reports.history import PARTS, History
from recoverrun.reports.postmortem import identity_ranges, meaning, median
from recoverrun.reports.proof import step_fault
from recoverrun.reports.root_cause import losses_of, root_of
from recoverrun.text import plural, ranges, ranks, sanitize, span
from rendezvous.journal.reader import Entry, RunLog
from rendezvous.protocol.effects import Json

SCHEMA = 1
STEPS = 64  # committed steps that are kept for step times
HAPPENINGS = 32  # events that are kept for the screen
SILENT_AFTER_S = 30.0  # without a record, and twenty times the usual step

Phase = Literal["waiting", "starting", "running", "degraded", "ended", "failed"]
Health = Literal["up", "done", "stopped", "fault"]
Kind = Literal["lost", "made-good", "moved", "joined", "warning", "note", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    slot: int
    nodes: tuple[str, ...]
    health: tuple[Health, ...]  # one per shard
    live: bool
    quota: int  # microbatches in the newest committed step, -1 unknown
    home: int  # microbatches of the script's own loop, 0 unknown
    note: str  # why it is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One line of the event list."""

    ts: float
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    now: float  # seconds since 1970, as all instants here
    utc_offset_s: int
    run_id: str
    run_dir: str
    phase: Phase
    began: float
    latest: float  # newest record
    silent_s: float  # 0 while records come as usual
    exit_code: int | None
    cause: str  # of the failure, in one line
    world_size: int
    alive: int  # workers
    generation: int
    step: int  # newest committed, -1 none
    step_ms: float  # of that step
    median_ms: float
    recent_ms: tuple[float, ...]
    microbatches: int  # of the newest committed step
    total: int
    steps: int
    exact: int  # steps with each identity once
    broken: str  # the newest violation, "" if none
    promise: str
    promise_reason: str
    replicas: tuple[Replica, ...]
    losses: int
    made_good: int
    redone: int
    recovery_ms: float  # of the newest recovery, -1 none
    unreadable: int
    happenings: tuple[Happening, ...]

    @property
    def live(self) -> int:
        return sum(1 for replica in self.replicas if replica.live)

    @property
    def up_s(self) -> float:
        return max(0.0, (self.latest if self.exit_code is not None else self.now) - self.began)


@dataclass(slots=True)
class Watch:
    """Follows one run; feed it records in the order of the journal."""

    run_dir: str
    facts: History = field(default_factory=History)
    steps: int = 0
    exact: int = 0
    redone: int = 0
    broken: str = ""
    unreadable: int = 0
    happenings: list[Happening] = field(default_factory=list)

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            before = self._live()
            self.facts.add(entry)
            if entry.event == "step.commit":
                self._commit()
            happening = _happening(entry, self.facts, before)
            if happening is not None:
                self.happenings.append(happening)
        del self.happenings[:-HAPPENINGS]

    def _commit(self) -> None:
        commit = self.facts.commits[-1]
        fault, doubt = step_fault(commit, self.facts)
        self.steps += 1
        self.exact += not fault and not doubt
        self.redone += commit.redone
        self.broken = fault or self.broken
        del self.facts.commits[:-STEPS]

    def _live(self) -> frozenset[int]:
        """Slots of the newest View, or all that are known."""
        views = self.facts.views
        if views and views[-1].live:
            return frozenset(views[-1].live)
        return frozenset(self.facts.slots) - {loss.slot for loss in self.facts.losses}

    def status(self, now: float, utc_offset_s: int = 0) -> Status:
        facts = self.facts
        newest = facts.commits[-1] if facts.commits else None
        times = tuple(commit.ms for commit in facts.commits if commit.ms > 0)
        middle = median(times)
        quiet = max(0.0, now - facts.latest) if facts.latest else 0.0
        patience = max(SILENT_AFTER_S, 20 * middle / 1000)
        live = self._live()
        root = root_of(facts) if facts.exit_code else None
        recovery = facts.recoveries[-1] if facts.recoveries else None
        return Status(
            now=now,
            utc_offset_s=utc_offset_s,
            run_id=facts.run_id,
            run_dir=self.run_dir,
            phase=self._phase(live),
            began=facts.began or now,
            latest=facts.latest,
            silent_s=quiet if quiet > patience and facts.exit_code is None else 0.0,
            exit_code=facts.exit_code,
            cause=root.what if root else "",
            world_size=facts.world_size or len(facts.nodes),
            alive=len(facts.alive),
            generation=max(
                [view.generation for view in facts.views[-1:]]
                + [newest.generation if newest else 0]
            ),
            step=newest.step if newest else -1,
            step_ms=newest.ms if newest else 0.0,
            median_ms=middle,
            recent_ms=times,
            microbatches=newest.microbatches if newest else 0,
            total=newest.total if newest else 0,
            steps=self.steps,
            exact=self.exact,
            broken=self.broken,
            promise=facts.promised,
            promise_reason=facts.weakened or facts.steered or facts.promise_reason,
            replicas=self._replicas(live),
            losses=len(facts.losses),
            made_good=sum(len(one.slots) for one in facts.recoveries),
            redone=self.redone,
            recovery_ms=recovery.total_ms if recovery else -1.0,
            unreadable=self.unreadable,
            happenings=tuple(self.happenings),
        )

    def _phase(self, live: frozenset[int]) -> Phase:
        facts = self.facts
        if not facts.latest:
            return "waiting"
        if facts.exit_code is not None:
            return "failed" if facts.exit_code else "ended"
        if facts.replicas and len(live) < len(facts.replicas):
            return "degraded"
        return "running" if facts.commits or facts.promise else "starting"

    def _replicas(self, live: frozenset[int]) -> tuple[Replica, ...]:
        facts = self.facts
        quota = facts.commits[-1].quota if facts.commits else {}
        found = losses_of(facts)
        notes = {one.loss.slot: _short(one.root.cause, one.root.rank) for one in found}
        guilty = {one.root.rank for one in found}
        root = root_of(facts) if facts.exit_code else None
        guilty |= {root.rank, *root.same} if root else set()
        return tuple(
            Replica(
                slot=slot,
                nodes=tuple(sorted({facts.nodes[r] for r in members if r in facts.nodes})),
                health=tuple(_health(rank, slot in live, facts, guilty) for rank in members),
                live=slot in live,
                quota=quota.get(slot, 0 if quota else -1),
                home=facts.microbatches,
                note="" if slot in live else notes.get(slot, "not in the View"),
            )
            for slot, members in enumerate(facts.replicas)
        )


def _health(rank: int, live: bool, facts: History, guilty: set[int]) -> Health:
    """What is known of one worker; a worker whose node left no journal is as its replica is."""
    if not live or rank in facts.nodes and rank not in facts.alive:
        if rank in guilty:
            return "fault"
        return "done" if live and not facts.exit_code else "stopped"
    return "up" if facts.exit_code is None else "done"


def _short(cause: str, rank: int) -> str:
    words = {"exception": "raised an exception", "exit": "exited", "unknown": "ended"}
    words["node-lost"] = "and its node are gone"
    return f"rank {rank} {words.get(cause, cause.upper())}"


def status_of(log: RunLog, now: float, utc_offset_s: int = 0) -> Status:
    """The status of a run that has been read in one go."""
    watch = Watch(run_dir=str(log.run_dir), unreadable=log.unreadable_places)
    watch.add(log.entries)
    return watch.status(now, utc_offset_s)


def _happening(entry: Entry, facts: History, before: frozenset[int]) -> Happening | None:
    """The line of the event list that a record is worth, if any."""
    found = _line(entry, facts, before)
    return None if found is None else Happening(ts=entry.ts, kind=found[0], text=sanitize(found[1]))


def _line(entry: Entry, facts: History, before: frozenset[int]) -> tuple[Kind, str] | None:
    match entry.event:
        case "replica.lost":
            return "lost", f"replica {entry.integer('slot')} lost: {entry.reason}"
        case "recovery.done":
            return "made-good", _recovered(entry, facts)
        case "view.change":
            back = sorted(set(entry.integers("live")) - before) if before else []
            return ("joined", f"replica {ranges(back)} is back") if back else None
        case "node.lost":
            return "lost", f"node lost: {entry.reason}"
        case "node.join":
            joined = entry.text("name") or entry.node
            return "joined", f"{joined} joined with {plural(entry.integer('nproc', 0), 'worker')}"
        case "worker.exit":
            death = facts.deaths[-1] if facts.deaths else None
            faulty = death is not None and not death.ours and bool(death.signal or death.code)
            return ("lost", entry.reason) if faulty and not facts.replicas else None
        case "topology.learn":
            return "note", f"topology: {_shape(facts)}, strategy {entry.text('strategy')}"
        case "promise.state":
            return "note", f"promise {entry.text('promise')}: {entry.reason}"
        case "invariant.break":
            return "warning", f"{entry.text('invariant')} is broken: {entry.reason}"
        case "digest.differ":
            return "warning", f"replicas differ: {entry.reason}"
        case "journal.drop":
            return (
                "warning",
                f"{plural(entry.integer('records', 0), 'record')} could not be written",
            )
        case "notice.give":
            return "note", f"rank {entry.integer('rank')}: {entry.reason}"
        case "run.end":
            return "end", _ended(entry)
        case _:
            return None


def _shape(facts: History) -> str:
    if not facts.replicas:
        return "unknown"
    return f"{plural(len(facts.replicas), 'replica')} of {plural(len(facts.replicas[0]), 'rank')}"


def _ended(entry: Entry) -> str:
    code = entry.integer("exit_code", 1)
    words = meaning(code) or entry.reason
    return f"ended with code {code}" + (f": {words}" if words else "")


def _recovered(entry: Entry, facts: History) -> str:
    recovery = facts.recoveries[-1]
    again = identity_ranges(recovery.identities)
    known = dict(recovery.parts_ms)
    slowest = max(PARTS, key=lambda part: known.get(part, 0.0))
    redone = plural(recovery.redone, "microbatch") if recovery.redone else "nothing"
    named = f" ({again})" if again and len(again) <= 24 else ""
    lost = f"replica {ranges(recovery.slots)}" if recovery.slots else ranks(recovery.root_ranks)
    return (
        f"{lost} taken over in {span(recovery.total_ms / 1000)} at step {recovery.step}: "
        f"{redone} redone{named}, longest part {slowest} {span(known.get(slowest, 0.0) / 1000)}"
    )


def to_json(status: Status) -> str:
    """One line for programs; fields are only ever added within a schema."""
    plain: dict[str, Json] = {"schema": SCHEMA, **asdict(status)}
    return json.dumps(plain, separators=(",", ":"))
