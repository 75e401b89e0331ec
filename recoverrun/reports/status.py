"""The state of a run now, from the journal as far as it has been read.

`Watch` takes in new records and gives a frozen `Status` for any instant; it keeps a bounded number
of steps, so a screen can follow a run for weeks. Pure: the instant and the time zone are given.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from recoverrun.reports import figures
from recoverrun.reports.commits import Commit
from recoverrun.reports.goodput import Goodput, goodput_json
from recoverrun.reports.history import History
from recoverrun.reports.postmortem import STOPPED
from recoverrun.reports.returns import on_the_way
from recoverrun.reports.root_cause import losses_of, root_of
from recoverrun.reports.standing_still import StandingStill
from recoverrun.reports.status_events import Happening, happening_of
from recoverrun.reports.steering import steered
from recoverrun.reports.step_tally import StepTally
from recoverrun.text import run_title
from rendezvous.journal.reader import Entry
from rendezvous.journal.step_lines import STEPS as STEP_EVENTS
from rendezvous.protocol.records import PART, Json

SCHEMA = 1
STEPS = 64  # committed steps that are kept for step times
HAPPENINGS = 32  # events that are kept for the screen
SILENT_AFTER_S = 30.0  # without a record, and twenty times the usual step
IDLE_AFTER_S = 5.0  # without a step, and five times the usual one

Phase = Literal["waiting", "starting", "running", "degraded", "ended", "stopped", "failed"]
Health = Literal["up", "done", "stopped", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    slot: int
    ranks: tuple[int, ...]
    pids: tuple[int, ...]  # of those whose process is known and lives
    nodes: tuple[str, ...]
    health: tuple[Health, ...]  # one per shard
    live: bool
    quota: int  # microbatches in the newest committed step, -1 unknown
    home: int  # microbatches of the script's own loop, 0 unknown
    note: str  # why it is lost
    coming: str  # how far it is on its way back, "" where it is on none
    waited_for: str  # why others wait for it just now, "" if they do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    now: float  # seconds since 1970, as all instants here
    utc_offset_s: int
    run_id: str
    argv: tuple[str, ...]  # script and arguments
    run_dir: str
    phase: Phase
    began: float
    latest: float  # newest record
    silent_s: float  # 0 while records come as usual
    idle_s: float  # since the newest step, 0 while steps come as usual
    exit_code: int | None
    cause: str  # of the failure, in one line
    world_size: int
    alive: int  # workers
    pids: dict[int, int]  # of those, by rank
    generation: int
    last_step: int  # newest committed, -1 none
    of: int  # steps that there will be in this attempt; 0 unknown
    eta_s: float  # until then, at the speed of the last steps; -1 unknown
    step_ms: float  # of that step
    median_step_ms: float  # of all steps, without what losses cost
    recent_ms: tuple[float, ...]
    microbatches: int  # of the newest committed step
    total: int
    steps: int  # committed
    exact: int  # of them: with each identity once
    steps_done: int  # of the script; one that was done twice is one
    steps_again: int  # committed, and done before a restart
    restarts: int  # of all processes
    broken: str  # the newest violation, "" if none
    promise: str
    promise_reason: str
    replicas: tuple[Replica, ...]
    losses: int
    survived: int
    returned: int  # replicas that took part again after a loss
    snapshots: str  # what a loss would go back to, in words; "" if to nothing
    redone_microbatches: int  # in recoveries
    taken_over_microbatches: int  # by other replicas in all steps after
    lost_s: float  # by all recoveries
    goodput: Goodput
    recovery_ms: float  # of the newest recovery, -1 none
    unreadable: int
    cut_off: bool  # the disk takes no records, as far as is known
    happenings: tuple[Happening, ...]

    @property
    def title(self) -> str:
        """The script's name, and that of the job where a user has given one."""
        return run_title(self.argv, self.run_id)

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
    steps: int = 0  # that there will be, as a user says; 0: as the script shows, if it does
    facts: History = field(default_factory=History)
    unreadable: int = 0
    happenings: list[Happening] = field(default_factory=list)
    _still: StandingStill = field(default_factory=StandingStill)
    _past: StepTally = field(default_factory=StepTally)  # steps that are kept no more
    _coordinated: bool = False  # the journal of a node that coordinated from the start is here

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._coordinated |= entry.event == "node.join"
            if entry.event in STEP_EVENTS and self._is_past(entry):
                continue  # As another node tells it, which is read later.
            known = len(self.facts.losses)
            self.facts.add(entry)
            self._still.take(entry)
            same = entry.event == "replica.lost" and len(self.facts.losses) == known
            told_twice = entry.flag(PART) and (self._coordinated or same)
            happening = None if told_twice else happening_of(entry, self.facts)
            if happening is not None:
                self.happenings.append(happening)
            if len(self.facts.commits) > 2 * STEPS:
                self._forget()
        del self.happenings[:-HAPPENINGS]

    def _is_past(self, entry: Entry) -> bool:
        return (self.facts.attempt, entry.integer("step")) <= self._past.newest

    def _forget(self) -> None:
        """Keep the newest steps and count the others."""
        for commit in self.facts.commits[:-STEPS]:
            self._past.count(commit, self.facts)
        del self.facts.commits[:-STEPS]

    def _tally(self) -> StepTally:
        tally = replace(self._past)
        for commit in self.facts.commits:
            tally.count(commit, self.facts)
        return tally

    def _live(self) -> frozenset[int]:
        """Slots of the newest View of this attempt, or all that are known."""
        facts = self.facts
        views = [view for view in facts.views[-1:] if view.attempt == facts.attempt]
        if views and views[0].live:
            return frozenset(views[0].live)
        gone = {loss.slot for loss in facts.losses if loss.attempt == facts.attempt}
        return frozenset(facts.slots) - gone

    def _of(self) -> int:
        """The steps that there will be, 0 unknown. A script that ended well had no more to do,
        though its loops might have gone on.
        """
        facts = self.facts
        planned = max(0, facts.time.script.of)
        if facts.exit_code == 0:
            planned = min(planned, figures.newest_step(facts) + 1)
        return self.steps or planned

    def status(self, now: float, utc_offset_s: int = 0) -> Status:
        facts = self.facts
        newest = facts.commits[-1] if facts.commits else None
        times = tuple(commit.ms for commit in facts.commits[-STEPS:] if commit.ms > 0)
        goodput = facts.time.goodput()
        middle = goodput.usual_us / 1000
        live = self._live()
        recoveries = figures.recoveries(facts)
        of = self._of()
        tally = self._tally()
        return Status(
            now=now,
            utc_offset_s=utc_offset_s,
            run_id=facts.run_id,
            argv=facts.argv,
            run_dir=self.run_dir,
            phase=self._phase(live),
            began=facts.began or now,
            latest=facts.latest,
            silent_s=self._silent_s(now, middle),
            idle_s=self._idle_s(now, middle),
            exit_code=facts.exit_code,
            cause=self._cause(),
            world_size=facts.world_size or len(facts.nodes),
            alive=len(facts.alive),
            pids={rank: facts.pids[rank] for rank in sorted(facts.alive)},
            generation=max(
                [view.generation for view in facts.views[-1:]]
                + [newest.generation if newest else 0]
            ),
            last_step=figures.newest_step(facts),
            of=of,
            eta_s=_eta_s(newest.step, of, times) if newest else -1.0,
            step_ms=newest.ms if newest else 0.0,
            median_step_ms=middle,
            recent_ms=times,
            microbatches=_counted(newest) if newest else 0,
            total=newest.total if newest else 0,
            steps=tally.steps,
            steps_done=figures.steps_done(facts),
            steps_again=figures.steps_again(facts),
            restarts=figures.restarts(facts),
            exact=tally.exact,
            broken=tally.broken,
            promise=facts.promised,
            promise_reason=facts.weakened or steered(facts) or facts.promise_reason,
            replicas=self._replicas(live),
            losses=len(facts.losses),
            survived=figures.survived(facts),
            returned=figures.returned(facts),
            snapshots=facts.steps_back.newest_line(now),
            redone_microbatches=figures.redone(facts),
            taken_over_microbatches=figures.taken_over(facts, tally.moved),
            lost_s=figures.lost_s(facts),
            goodput=goodput,
            recovery_ms=recoveries[-1].total_ms if recoveries else -1.0,
            unreadable=self.unreadable,
            cut_off=facts.cut_off,
            happenings=tuple(self.happenings),
        )

    def _cause(self) -> str:
        """The root cause of a run that failed, in one line; "" if it did not, or none is known."""
        root = root_of(self.facts) if self.facts.exit_code else None
        return root.what if root else ""

    def _silent_s(self, now: float, usual_ms: float) -> float:
        """Seconds without a record; 0 while they come as usual."""
        facts = self.facts
        quiet = max(0.0, now - facts.latest) if facts.latest else 0.0
        patience = max(SILENT_AFTER_S, 20 * usual_ms / 1000)
        return quiet if quiet > patience and facts.exit_code is None else 0.0

    def _idle_s(self, now: float, usual_ms: float) -> float:
        """Seconds without a step of this attempt; 0 while they come as usual, or none was there."""
        facts = self.facts
        newest = facts.commits[-1] if facts.commits else None
        if newest is None or newest.attempt != facts.attempt or facts.exit_code is not None:
            return 0.0
        idle = max(0.0, now - newest.ts)
        return idle if idle > max(IDLE_AFTER_S, 5 * usual_ms / 1000) else 0.0

    def _phase(self, live: frozenset[int]) -> Phase:
        facts = self.facts
        if not facts.latest:
            return "waiting"
        if facts.exit_code is not None:
            if facts.exit_code in STOPPED:
                return "stopped"
            return "failed" if facts.exit_code else "ended"
        if facts.replicas and len(live) < len(facts.replicas):
            return "degraded"
        return "running" if facts.commits or facts.promise else "starting"

    def _replicas(self, live: frozenset[int]) -> tuple[Replica, ...]:
        facts = self.facts
        quota = facts.commits[-1].quota if facts.commits else {}
        absent = -1 if not quota or facts.commits[-1].part else 0
        found = [one for one in losses_of(facts) if one.loss.attempt == facts.attempt]
        notes = {one.loss.slot: _short(one.root.cause, one.root.rank) for one in found}
        guilty = {one.root.rank for one in found}
        root = root_of(facts) if facts.exit_code else None
        guilty |= {root.rank, *root.same} if root else set()
        return tuple(
            Replica(
                slot=slot,
                ranks=members,
                pids=tuple(facts.pids[r] for r in members if r in facts.alive and r in facts.pids),
                nodes=tuple(sorted({facts.nodes[r] for r in members if r in facts.nodes})),
                health=tuple(_health(rank, slot in live, facts, guilty) for rank in members),
                live=slot in live,
                quota=quota.get(slot, absent),
                home=facts.microbatches,
                note="" if slot in live else notes.get(slot, "not in the View"),
                coming="" if slot in live else self._coming(slot),
                waited_for=self._still.of(members) if slot in live else "",
            )
            for slot, members in enumerate(facts.replicas)
        )

    def _coming(self, slot: int) -> str:
        way = self.facts.returns.coming(self.facts.attempt, slot)
        return "" if way is None else on_the_way(way)


def _eta_s(step: int, of: int, recent_ms: Sequence[float]) -> float:
    """Seconds until step `of - 1` is committed, -1 unknown."""
    if not of or not recent_ms:
        return -1.0
    return max(0, of - 1 - step) * sum(recent_ms) / len(recent_ms) / 1000


def _counted(commit: Commit) -> int:
    """Microbatches in the sum of a step; where only some are named, as the vote counted them."""
    return commit.total if commit.part else commit.microbatches


def _health(rank: int, live: bool, facts: History, guilty: set[int]) -> Health:
    """The health of one worker; a worker whose node left no journal is as its replica is."""
    if not live or rank in facts.nodes and rank not in facts.alive:
        if rank in guilty:
            return "fault"
        return "done" if live and not facts.exit_code else "stopped"
    return "up" if facts.exit_code is None else "done"


def _short(cause: str, rank: int) -> str:
    words = {"exception": "raised an exception", "exit": "exited", "unknown": "ended"}
    words |= {"node-lost": "and its node are gone", "hang": "hangs"}
    words["parameters"] = "held other parameters"
    return f"rank {rank} {words.get(cause, cause.upper())}"


def to_json(status: Status) -> str:
    """One line for programs; fields are only ever added within a schema."""
    plain: dict[str, Json] = {"schema": SCHEMA, **asdict(status)}
    plain["goodput"] = goodput_json(status.goodput)
    return json.dumps(plain, separators=(",", ":"))
