"""What happened in a run, from its journal alone: the verdict, the losses, the proof.

Pure: journal in, a frozen `Postmortem` out. It works on a run that is over, dead or still going;
what the journal does not hold is named, never guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from recoverrun.errors import MEANINGS, ExitCode
from recoverrun.reports.commits import Commit, claimed
from recoverrun.reports.history import PARTS, History, Recovery, history
from recoverrun.reports.proof import Proof, prove
from recoverrun.reports.root_cause import LossCause, RootCause, losses, root_cause
from recoverrun.text import plural, ranks, sanitize
from rendezvous.journal.reader import RunLog
from rendezvous.protocol.messages import Identity

Outcome = Literal["completed", "failed", "stopped", "unfinished", "empty"]
State = Literal["absent", "alive", "lost", "gone"]

STOPPED = frozenset({ExitCode.REQUEUE, ExitCode.INTERRUPTED, ExitCode.TERMINATED})
"""Ends that somebody asked for."""


def meaning(code: int) -> str:
    """What an exit code of ours says; "" for the root rank's own codes."""
    ours = code >= ExitCode.NEVER_FORMED and code in set(ExitCode)
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
    redone: int
    total: int  # microbatches of all committed steps
    last_step: int  # -1: none
    step_ms: float  # median, 0 while unknown
    losses: tuple[LossReport, ...]
    root: RootCause | None
    proof: Proof
    lanes: tuple[Lane, ...]
    unreadable: tuple[str, ...]
    unreadable_places: int
    unknown_events: tuple[str, ...]
    next: tuple[str, ...]

    @property
    def duration_s(self) -> float:
        return max(0.0, self.latest - self.began)


def postmortem(log: RunLog) -> Postmortem:
    facts = history(log)
    proof = prove(facts, log)
    ends = [reason for _, code, _, reason in facts.ends if code == facts.exit_code]
    return Postmortem(
        run_dir=str(log.run_dir),
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
        world_size=facts.world_size or len(facts.nodes),
        replicas=facts.replicas,
        strategy=facts.strategy,
        promise=facts.promise,
        promise_reason=facts.promise_reason,
        weakened=facts.weakened,
        weakened_at=facts.weakened_at,
        steered=facts.steered,
        steered_at=facts.steered_at,
        inject=facts.inject,
        attempts=facts.attempts,
        digests=facts.digests,
        redone=sum(commit.redone for commit in facts.commits),
        total=sum(max(0, commit.total) for commit in facts.commits),
        last_step=max((commit.step for commit in facts.commits), default=-1),
        step_ms=median([commit.ms for commit in facts.commits if commit.ms > 0]),
        losses=_loss_reports(facts, losses(log)),
        root=root_cause(log),
        proof=proof,
        lanes=_lanes(facts),
        unreadable=tuple(f"{place.file}:{place.line}: {place.why}" for place in log.unreadable),
        unreadable_places=log.unreadable_places,
        unknown_events=log.unknown,
        next=_next(log, facts, proof),
    )


def median(values: Sequence[float]) -> float:
    """The middle value, 0 for none."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


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
    again = [i for i in recovery.identities if i[0] == slot] if recovery else []
    return LossReport(
        number=number,
        slot=slot,
        generation=cause.loss.generation,
        cause=cause,
        step=recovery.step if recovery else -1,
        moved=_moves(slot, commit) if commit else (),
        redone=_redone(recovery, again) if recovery else 0,
        again=tuple(again),
        parts_ms=recovery.parts_ms if recovery else (),
        total_ms=recovery.total_ms if recovery else -1.0,
        shared=len(recovery.slots) if recovery else 0,
    )


def _redone(recovery: Recovery, again: Sequence[Identity]) -> int:
    """Microbatches computed again for one loss; of all its losses where no identity is named."""
    return len(again) if recovery.identities else recovery.redone


def _moves(slot: int, commit: Commit) -> tuple[Move, ...]:
    """Who computed microbatches of `slot` that is not `slot`, in this step."""
    moves = []
    for replica, done in sorted(claimed(commit).items()):
        taken = tuple(sorted(identity for identity in done if identity[0] == slot))
        if taken and replica != slot:
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
    steps = plural(found.proof.steps, "step")
    absorbed = sum(1 for loss in found.losses if loss.total_ms >= 0)
    kept = f", {plural(absorbed, 'lost replica')} taken over" if absorbed else ""
    restarts = f", {plural(found.attempts - 1, 'restart')}" if found.attempts > 1 else ""
    match found.outcome:
        case "completed":
            return f"completed {steps}{kept or ', nothing was lost'}{restarts}"
        case "failed" | "stopped":
            said = meaning(found.exit_code or 0)
            code = f"exit code {found.exit_code}" + (f" ({said})" if said else "")
            return f"{found.outcome} with {code} after {steps}{kept}{restarts}"
        case "unfinished":
            return f"no end on record after {steps}{kept}: still running, or its launcher died"
        case "empty":
            return "nothing readable in this directory"


def invariant_line(found: Postmortem) -> str:
    """INV-1 in one line: N/N committed steps had exactly B microbatches."""
    proof = found.proof
    if not proof.steps:
        return "no committed step to check"
    expected = f"exactly {proof.microbatches} microbatches" if proof.microbatches else "one total"
    return f"{proof.exact:,}/{proof.steps:,} committed steps had {expected}, each once"


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
    where = sanitize(str(log.run_dir), 200)
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
    """Who went down with the root, in words."""
    return ranks(root.victims) if root.victims else "nobody"
