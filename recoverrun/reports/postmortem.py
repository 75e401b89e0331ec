"""The report of a run, from its journal alone: the verdict, the losses, the proof.

Pure: journal in, a frozen `Postmortem` out. It works on a run that is over, dead or still going;
what the journal does not hold is named, never guessed.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from recoverrun.reports import figures
from recoverrun.reports.commits import Claims, Commit
from recoverrun.reports.goodput import Goodput
from recoverrun.reports.happenings import Recovery
from recoverrun.reports.history import History, history
from recoverrun.reports.named_cause import RootCause
from recoverrun.reports.proof import Proof, lacking, prove
from recoverrun.reports.recoveries import PARTS
from recoverrun.reports.returns import ReturnWay
from recoverrun.reports.root_cause import LossCause, blind_spot, losses_of, root_of
from recoverrun.reports.slow_ranks import SlowRank, slow_ranks
from recoverrun.reports.steering import steered
from recoverrun.reports.steps_back import StepBack
from recoverrun.text import plural, ranks, run_title, sanitize, span
from rendezvous.journal.reader import RunLog
from rendezvous.protocol.exit_codes import MEANINGS, RESERVED_FROM, ExitCode
from rendezvous.protocol.views import Identity

Outcome = Literal["completed", "failed", "stopped", "unfinished", "empty"]
State = Literal["absent", "alive", "lost", "gone"]

PATH_MOST = 4096
"""Letters of a path that Linux takes."""

STOPPED = frozenset({ExitCode.REQUEUE, ExitCode.INTERRUPTED, ExitCode.TERMINATED})
"""Ends that somebody asked for."""


def meaning(code: int) -> str:
    """The meaning of an exit code of ours; "" for the root rank's own codes."""
    ours = code >= RESERVED_FROM and code in set(ExitCode)
    return MEANINGS[ExitCode(code)] if ours else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Microbatches of lost replicas that `replica` computed in one step."""

    replica: int
    identities: tuple[Identity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """One lost replica: why, who went with it, what it cost."""

    number: int  # from 1
    slot: int
    generation: int
    cause: LossCause
    step: int  # whose microbatches were made up; -1: unknown
    moved: tuple[Move, ...]
    redone: int
    again: tuple[Identity, ...]  # computed a second time, where the journal names them
    parts_ms: tuple[tuple[str, float], ...]  # () without a recovery
    total_ms: float  # -1 without a recovery
    shared: int  # replicas that the same recovery covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The life of one replica: from each instant on, its state."""

    slot: int
    changes: tuple[tuple[float, State], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmortem:
    run_dir: str
    run_id: str
    argv: tuple[str, ...]
    version: str
    outcome: Outcome
    exit_code: int | None
    end_reason: str
    began: float  # seconds since 1970, as all instants here
    latest: float
    nodes: tuple[str, ...]
    missing_nodes: tuple[str, ...]
    earlier_runs: int  # in the same directory, of which nothing is told
    world_size: int
    replicas: tuple[tuple[int, ...], ...]
    strategy: str
    promise: str
    promise_reason: str
    weakened: str  # why the promise came down to equal-count, if it did
    weakened_at: int  # from this step on
    steered: str  # what came to cover the survivors only, if anything did
    steered_at: int
    inject: str
    attempts: int
    digests: int
    redone: int  # microbatches, in recoveries
    taken_over: int  # by other replicas in all steps after
    lost_s: float  # by all recoveries
    total: int  # microbatches of all committed steps
    last_step: int  # the newest one, -1: none
    steps_done: int  # of the script; one that was done twice is one
    steps_again: int  # committed, and done before a restart
    steps_words: str  # how many were done, or are on record
    survived: int  # losses
    returned: int  # replicas that came back
    began_again: str  # how often all ranks did, in words; "" if never
    recoveries_ms: tuple[float, ...]  # each once
    goodput: Goodput
    losses: tuple[LossReport, ...]
    ways: tuple[ReturnWay, ...]  # back, of lost replicas that were started again
    steps_back: tuple[StepBack, ...]  # of all ranks, to a snapshot
    slow: tuple[SlowRank, ...]
    root: RootCause | None
    proof: Proof
    missing_records: int  # that the disk did not take
    missing_from: int  # the step under way at the first of them, -1 unknown
    lacking: str  # both in words
    lanes: tuple[Lane, ...]
    unreadable: tuple[str, ...]
    unreadable_places: int
    unknown_events: tuple[str, ...]
    next: tuple[str, ...]

    @property
    def title(self) -> str:
        """The script's name, and that of the job where a user has given one."""
        return run_title(self.argv, self.run_id)

    @property
    def wall_s(self) -> float:
        return max(0.0, self.latest - self.began)


def postmortem(log: RunLog) -> Postmortem:
    """The report of a run."""
    return judged(history(log), log)


def judged(facts: History, log: RunLog) -> Postmortem:
    """The same of facts that were read from this log."""
    blind, proof = blind_spot(log), prove(facts, log)
    ends = [end.reason for end in facts.ends if end.code == facts.exit_code]
    return Postmortem(
        run_dir=" ".join(map(str, (log.run_dir, *log.others))),
        run_id=facts.run_id or log.run_dir.name,
        argv=facts.argv,
        version=facts.version,
        outcome=_outcome(log, facts),
        exit_code=facts.exit_code,
        end_reason=ends[0] if ends else "",
        began=facts.began,
        latest=facts.latest,
        nodes=log.nodes,
        missing_nodes=log.missing_nodes(),
        earlier_runs=log.earlier,
        world_size=facts.world_size or len(facts.nodes),
        replicas=facts.replicas,
        strategy=facts.strategy,
        promise=facts.promise,
        promise_reason=facts.promise_reason,
        weakened=facts.weakened,
        weakened_at=facts.weakened_at,
        steered=steered(facts),
        steered_at=facts.steered_at,
        inject=facts.inject,
        attempts=facts.attempts,
        digests=facts.digests,
        redone=figures.redone(facts),
        taken_over=figures.taken_over(facts, sum(commit.moved for commit in facts.commits)),
        lost_s=figures.lost_s(facts),
        steps_done=figures.steps_done(facts),
        steps_again=figures.steps_again(facts),
        steps_words=figures.steps_in_words(facts, facts.commits),
        survived=figures.survived(facts),
        returned=figures.returned(facts),
        began_again=figures.went_back(facts),
        recoveries_ms=tuple(one.total_ms for one in figures.recoveries(facts)),
        total=sum(max(0, commit.total) for commit in facts.commits),
        last_step=figures.newest_step(facts),
        goodput=facts.time.goodput(),
        losses=_loss_reports(facts, losses_of(facts, blind=blind)),
        ways=tuple(facts.returns.ways),
        steps_back=tuple(facts.steps_back.found),
        slow=slow_ranks(log.entries),
        root=root_of(facts, blind=blind),
        proof=proof,
        missing_records=facts.missing,
        missing_from=facts.missing_from,
        lacking=lacking(facts) if facts.missing else "",
        lanes=_lanes(facts),
        unreadable=tuple(f"{place.file}:{place.line}: {place.why}" for place in log.unreadable),
        unreadable_places=log.unreadable_places,
        unknown_events=log.unknown,
        next=_next(log, facts, proof),
    )


def _outcome(log: RunLog, facts: History) -> Outcome:
    if not log.entries:
        return "empty"
    code = facts.exit_code
    if code is None:
        return "unfinished"
    if code == 0:
        return "completed"
    return "stopped" if code in STOPPED else "failed"


def _loss_reports(facts: History, causes: tuple[LossCause, ...]) -> tuple[LossReport, ...]:
    commits = {(commit.attempt, commit.step): commit for commit in facts.commits}
    reports = []
    for number, cause in enumerate(causes, start=1):
        recovery = cause.recovery
        commit = commits.get((recovery.attempt, recovery.step)) if recovery else None
        reports.append(_loss_report(number, cause, recovery, commit))
    return tuple(reports)


def _loss_report(
    number: int, cause: LossCause, recovery: Recovery | None, commit: Commit | None
) -> LossReport:
    slot = cause.loss.slot
    again = _again(slot, recovery) if recovery else ()
    return LossReport(
        number=number,
        slot=slot,
        generation=cause.loss.generation,
        cause=cause,
        step=recovery.step if recovery else -1,
        moved=_moves(slot, commit) if commit else (),
        redone=_redone(recovery, again) if recovery else 0,
        again=again,
        parts_ms=recovery.parts_ms if recovery else (),
        total_ms=recovery.total_ms if recovery else -1.0,
        shared=len(recovery.slots) if recovery else 0,
    )


def _again(slot: int, recovery: Recovery) -> tuple[Identity, ...]:
    """The microbatches computed again for the loss of `slot`: each belongs to one loss. Its own,
    and for the first of several, those that lost replicas had taken over before.
    """
    others = set(recovery.slots) - {slot}
    first = slot == min(recovery.slots, default=slot)
    mine = (one for one in recovery.identities if one[0] not in others)
    return tuple(one for one in mine if first or one[0] == slot)


def _redone(recovery: Recovery, again: Sequence[Identity]) -> int:
    """Microbatches computed again for one loss; of all its losses where no identity is named."""
    return len(again) if recovery.identities else recovery.redone


def _moves(slot: int, commit: Commit) -> tuple[Move, ...]:
    """The moves in this step: microbatches of `slot` that another replica computed."""
    moves = []
    for replica, done in sorted(Claims(commit).moved().items()):
        taken = tuple(sorted(identity for identity in done if identity[0] == slot))
        if taken:
            moves.append(Move(replica=replica, identities=taken))
    return tuple(moves)


def _lanes(facts: History) -> tuple[Lane, ...]:
    lanes = []
    for slot in facts.slots:
        changes: list[tuple[float, State]] = [(facts.began, "alive")]
        events: list[tuple[float, State]] = [
            (loss.ts, "lost") for loss in facts.losses if loss.slot == slot
        ]
        events += [(view.ts, "alive") for view in facts.views if slot in view.live]
        events += [(ts, "alive") for ts in facts.time.begun]
        for ts, state in sorted(events):
            if state != changes[-1][1]:
                changes.append((ts, state))
        lanes.append(Lane(slot=slot, changes=tuple(changes)))
    return tuple(lanes)


def cells(lane: Lane, *, began: float, latest: float, columns: int) -> tuple[State, ...]:
    """The lane cut into `columns` equal spans; a loss is never hidden by what follows it."""
    width = max(latest - began, 1e-9) / columns
    row: list[State] = []
    state: State = "absent"
    pending = list(lane.changes)
    for column in range(columns):
        end = began + width * (column + 1)
        shown: State = "gone" if state == "lost" else state
        while pending and (pending[0][0] < end or column == columns - 1):
            state = pending.pop(0)[1]
            shown = "lost" if state == "lost" or shown == "lost" else state
        row.append(shown)
    return tuple(row)


def verdict(found: Postmortem) -> str:
    """The outcome in one line."""
    survived, back = found.survived, found.returned
    # Where nobody votes on steps none is on record, and some may have been done.
    uncounted = not found.proof.steps and found.promise in ("rollback", "unprotected")
    after = "" if uncounted else f" after {found.steps_words}"
    kept = f", {plural(survived, 'loss')} survived" if survived else ""
    kept += f", {plural(back, 'replica')} came back" if back else ""
    kept += f", {found.began_again}" if found.began_again else ""
    match found.outcome:
        case "completed":
            unread = found.unreadable_places > 0
            kept = kept or ("" if found.lacking or unread else ", nothing was lost")
            none = "with no step that can be read" if unread else "without a protected step"
            did = found.steps_words if found.proof.steps else none
            ended = f"completed {did}{kept}"
        case "failed" | "stopped":
            said = meaning(found.exit_code or 0)
            code = f"exit code {found.exit_code}" + (f" ({said})" if said else "")
            ended = f"{found.outcome} with {code}{after}{kept}"
        case "unfinished":
            ended = f"no end on record{after}{kept}"
            if not found.lacking:
                return f"{ended}: still running, or its launcher died"
        case "empty":
            return "nothing readable in this directory"
    return f"{ended}; {found.lacking}" if found.lacking else ended


def invariant_line(found: Postmortem) -> str:
    """INV-1 in one line: N/N committed steps had exactly B microbatches."""
    proof = found.proof
    if not proof.steps:
        return "no committed step to check"
    expected = f"exactly {proof.microbatches}" if proof.microbatches else "all their"
    return f"{proof.exact:,}/{proof.steps:,} committed steps had {expected} microbatches, each once"


def cost(found: Postmortem) -> str:
    """The cost of losses, in time and microbatches."""
    done = found.recoveries_ms
    moved = f"{plural(found.redone, 'microbatch')} redone, {found.taken_over:,} taken over"
    back = len(found.steps_back)
    if not done and not back:
        return moved
    times = []
    if len(done) > 1:
        middle, worst = span(median(done) / 1000), span(max(done) / 1000)
        times.append(f"{len(done)} recoveries (median {middle}, longest {worst})")
    elif done and back:
        times.append("1 recovery")
    if back:
        times.append(f"going back {plural(back, 'time')}")
    within = f" in {' and '.join(times)}" if times else ""
    return f"{span(found.lost_s)}{within} · {moved}"


def identity_ranges(found: Sequence[Identity]) -> str:
    """Identities with runs folded, as slot:index: "1:0-2, 1:5, 2:0"."""
    runs: list[list[int]] = []
    for slot, index in sorted(found):
        if runs and runs[-1][0] == slot and runs[-1][2] == index - 1:
            runs[-1][2] = index
        else:
            runs.append([slot, index, index])
    return ", ".join(f"{slot}:{a}" if a == b else f"{slot}:{a}-{b}" for slot, a, b in runs)


def _next(log: RunLog, facts: History, proof: Proof) -> tuple[str, ...]:
    where = " ".join(
        shlex.quote(sanitize(str(place), PATH_MOST)) for place in (log.run_dir, *log.others)
    )
    commands = []
    if not facts.ends and log.entries:
        commands.append(f"recoverrun status {where}")
    if facts.commits and facts.ends:
        commands.append(f"recoverrun postmortem {where} --verify")
    if not log.entries:
        commands.append("recoverrun postmortem latest")
    if proof.violations:
        commands.append(f"recoverrun postmortem {where} --verify --all")
    commands.append(f"recoverrun postmortem {where} --json")
    return tuple(commands)


def phases(loss: LossReport) -> str:
    """The parts of one recovery in words: "detect 1, agree 3, rebuild 182, ... ms"."""
    known = dict(loss.parts_ms)
    return ", ".join(f"{part} {known[part]:.0f}" for part in PARTS if part in known) + " ms"


def company(root: RootCause) -> str:
    """The ranks that went down with the root, in words."""
    return ranks(root.victims) if root.victims else "nobody"
