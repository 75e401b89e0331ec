"""The proof from the journal alone that every committed step had exactly its microbatches.

The proof keeps its own books: it takes the home layout from topology.learn, B from promise.state,
and counts the identities of each step.commit. It trusts no sum that the run has written about
itself. Three verdicts: *violated* (a record contradicts an invariant), *unproved* (records that
would be needed are not there; nothing contradicts), *proved*.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from recoverrun.reports.commits import Claims, Commit, alike
from recoverrun.reports.history import History, recovery_of
from recoverrun.reports.joined_account import part_fault
from recoverrun.text import plural, ranges, sanitize
from rendezvous.journal.reader import Gap, RunLog
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.views import Identity

SHOWN = 8  # identities of a step that are named; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A record that contradicts an invariant."""

    invariant: str
    what: str
    step: int  # -1: of no single step


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    steps: int  # committed, as the journal shows
    exact: int  # of those, with each identity of the home layout exactly once
    microbatches: int  # B; 0 while unknown, or where replicas took unequally many
    violations: tuple[Violation, ...]
    unproved: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Literal["proved", "violated", "unproved"]:
        if self.violations:
            return "violated"
        return "unproved" if self.unproved else "proved"

    @property
    def exit_code(self) -> int:
        if self.violations:
            return ExitCode.INVARIANT
        return ExitCode.FAILED if self.unproved else ExitCode.DONE


def prove(facts: History, log: RunLog) -> Proof:
    """Check INV-1, INV-2, INV-3, INV-7 and INV-9 as far as the journal goes."""
    violations: list[Violation] = []
    unproved: list[str] = []
    notes: list[str] = []
    exact = 0
    before: Commit | None = None
    for commit in facts.commits:
        if before is not None and _as_sound(commit, before):
            exact += 1
            continue
        fault, doubt = step_fault(commit, facts)
        before = commit if not fault and not doubt else None
        if fault:
            violations.append(Violation(invariant="INV-1", what=fault, step=commit.step))
        elif doubt:
            unproved.append(doubt)
        else:
            exact += 1
    if not facts.commits:
        unproved.append("the journal holds no committed step")
    violations += _generations(facts)
    for attempt in range(max(1, facts.attempts)):
        found, missing = _sequence(facts, attempt, log.gaps)
        violations += found
        unproved += missing
    found, missing = _losses(facts, log)
    violations += found
    unproved += missing
    for entry in facts.breaks:
        name = sanitize(entry.text("invariant", "an invariant"), 40)
        violations.append(Violation(invariant=name, what=sanitize(entry.reason), step=-1))
    for step in facts.differing:
        what = f"replicas held different parameters at step {step}"
        violations.append(Violation(invariant="INV-3", what=what, step=step))
    unproved += _damage(facts, log)
    uneven = [commit for commit in facts.commits if _is_uneven(commit, facts)]
    notes += _notes(facts, uneven)
    return Proof(
        steps=len(facts.commits),
        exact=exact,
        microbatches=0 if uneven else facts.microbatches * len(facts.replicas),
        violations=tuple(violations),
        unproved=tuple(unproved),
        notes=tuple(notes),
    )


def _as_sound(commit: Commit, before: Commit) -> bool:
    """True if all that a step is judged by is the same as in one that was found to be whole."""
    if commit.contradiction or commit.inferred or before.inferred:
        return False
    return alike(commit, before) and commit.microbatches == before.microbatches


def step_fault(commit: Commit, facts: History) -> tuple[str, str]:
    """(what contradicts INV-1 in this step or "", what leaves it in doubt or "")."""
    if commit.contradiction:
        return f"step {commit.step}: {commit.contradiction}", ""
    if not facts.replicas:
        return "", f"step {commit.step}: the journal does not show the layout of the replicas"
    slots = len(facts.replicas)
    if _is_uneven(commit, facts):
        return "", ""
    microbatches = facts.microbatches or max(0, commit.total) // slots
    whole = slots * microbatches
    if commit.total != whole:
        if commit.total <= 0 or commit.total % slots:
            return f"step {commit.step}: the vote counted {commit.total} of {whole}", ""
        microbatches = commit.total // slots  # An epoch may end in a step of another length.
        if commit.total < whole and not _length_said(commit, microbatches):
            return "", (
                f"step {commit.step} has B = {commit.total} instead of {whole} and runs on "
                "fewer replicas: a shorter step of the script, or microbatches that are gone"
            )
    if commit.part:
        counted = bool(facts.elsewhere) or _ended_in(commit, facts)
        return part_fault(commit, facts.replicas, microbatches, counted=counted)
    if commit.done is None and commit.microbatches == slots * microbatches:
        # The home layout, told by its quotas alone: the usual step must cost nothing to check.
        if commit.quota == dict.fromkeys(range(slots), microbatches):
            return _inferred(commit, facts)
    fault = _identities(commit, slots, microbatches)
    if fault:
        return f"step {commit.step}: {fault}", ""
    return _inferred(commit, facts)


def _is_uneven(commit: Commit, facts: History) -> bool:
    """True if all replicas were there and each put in its own microbatches, unequally many, where
    nothing is promised any more.
    """
    if facts.promise != "unprotected" or commit.inferred:
        return False
    slots, counts = len(facts.replicas), Claims(commit).own_counts()
    if counts is None:
        return False
    if all(slots * count == commit.total for count in counts.values()):
        return False
    said = sum(counts.values())
    if len(counts) == slots:
        return said == commit.total
    known = bool(facts.elsewhere) or _ended_in(commit, facts)
    return commit.part and known and said < commit.total


def _ended_in(commit: Commit, facts: History) -> bool:
    """True if the run was ended as it made this step: all have voted for it, and not all had the
    time to write down what they had put in.
    """
    return commit is facts.commits[-1] and bool(facts.exit_code)


def _length_said(commit: Commit, microbatches: int) -> bool:
    """True if each replica there says that its own script took so many microbatches to the step:
    they know it when it ends, and have all voted for the same.
    """
    if commit.done is None:
        return set(commit.quota.values()) == {microbatches}
    for slot, done in commit.done.items():
        own = {index for home, index in done if home == slot}
        if len(own) != microbatches or not all(0 <= index < microbatches for index in own):
            return False
    return True


def _identities(commit: Commit, slots: int, microbatches: int) -> str:
    """The difference between this step's identities and the home layout, or ""."""
    claims = Claims(commit)
    missing, missing_count = claims.missing(slots, microbatches, SHOWN)
    twice = claims.twice()
    foreign, foreign_count = claims.foreign(slots, microbatches, SHOWN)
    faults = []
    if missing_count:
        faults.append(f"{_named(missing, missing_count)} in no replica's account")
    if twice:
        faults.append(f"{_named(twice, len(twice))} in two accounts")
    if foreign_count:
        faults.append(f"{_named(foreign, foreign_count)} of no step of this layout")
    wrong = [slot for slot, count in commit.quota.items() if count != claims.count(slot)]
    if wrong:
        faults.append(f"the quota of replica {ranges(wrong)} is not what it has done")
    if commit.microbatches != claims.total:
        faults.append(f"{claims.total} identities, but {commit.microbatches} recorded")
    return "; ".join(faults)


def _named(found: list[Identity], count: int) -> str:
    """`found` are the first of `count`."""
    shown = " ".join(f"{slot}:{index}" for slot, index in found[:SHOWN])
    rest = f" and {count - SHOWN} more" if count > SHOWN else ""
    return f"microbatch {shown}{rest}" if count == 1 else f"microbatches {shown}{rest}"


def _inferred(commit: Commit, facts: History) -> tuple[str, str]:
    """Identities that no survivor has said are believed only of a replica that did not survive,
    in the life in which it computed them.
    """
    if not commit.inferred:
        return "", ""
    lives = {loss.slot: loss.life for loss in facts.losses if loss.attempt == commit.attempt}
    at = commit.attempt, commit.step
    lost = {slot for slot, life in lives.items() if life >= facts.returns.life_at(slot, *at)}
    silent = {facts.slot_of(rank) for rank in commit.unseen}
    odd = [identity for identity in commit.inferred if identity[0] not in lost | silent]
    if not odd:
        return "", ""
    named = _named(odd, len(odd))
    if _ended_in(commit, facts):
        return "", ""
    if facts.ends:
        return "", f"step {commit.step}: {named} reported by no replica when the run ended"
    return f"step {commit.step}: {named} reported by no replica, although their own lives", ""


def _generations(facts: History) -> list[Violation]:
    violations = []
    for before, after in zip(facts.views, facts.views[1:], strict=False):
        if after.attempt == before.attempt and after.generation <= before.generation:
            what = f"generation {after.generation} follows generation {before.generation}"
            violations.append(Violation(invariant="INV-2", what=what, step=-1))
    ordered = sorted(facts.commits, key=lambda commit: (commit.attempt, commit.step))
    for one, two in zip(ordered, ordered[1:], strict=False):
        if one.attempt == two.attempt and two.generation < one.generation:
            what = (
                f"step {two.step} was committed in generation {two.generation}, "
                f"the step before it in {one.generation}"
            )
            violations.append(Violation(invariant="INV-2", what=what, step=two.step))
    return violations


def _sequence(
    facts: History, attempt: int, gaps: tuple[Gap, ...]
) -> tuple[list[Violation], list[str]]:
    """Steps of one attempt, each once: twice is a violation, absent depends on the journal."""
    commits = [commit for commit in facts.commits if commit.attempt == attempt]
    commits.sort(key=lambda commit: (commit.step, commit.generation, commit.seq))
    violations: list[Violation] = []
    missing: list[str] = []
    if commits and attempt == 0 and commits[0].step > 0:
        absent = range(commits[0].step)
        missing.append(f"the journal has no record of {_steps(absent)}")
    for one, two in zip(commits, commits[1:], strict=False):
        absent = range(one.step + 1, two.step)
        if one.step == two.step:
            what = f"step {two.step} was committed twice"
            violations.append(Violation(invariant="INV-9", what=what, step=two.step))
        elif absent and _torn(one, two, gaps):
            missing.append(f"{_steps(absent)} missing from the journal")
        elif absent:
            what = f"{_steps(absent)} skipped: the journal is whole and shows no commit"
            violations.append(Violation(invariant="INV-9", what=what, step=absent[0]))
    return violations, missing


def _steps(absent: range) -> str:
    return f"step {absent[0]}" if len(absent) == 1 else f"steps {absent[0]}-{absent[-1]}"


def _torn(one: Commit, two: Commit, gaps: tuple[Gap, ...]) -> bool:
    """True if records between these two can have been lost on the way to the reader."""
    if one.node != two.node or two.seq < one.seq:
        return True
    return any(
        gap.node == one.node and gap.before > one.seq and gap.after < two.seq for gap in gaps
    )


def _losses(facts: History, log: RunLog) -> tuple[list[Violation], list[str]]:
    """Each loss has its recovery, or the run ended with it."""
    violations: list[Violation] = []
    unproved: list[str] = []
    for loss in facts.losses:
        restarted = loss.attempt < facts.attempt
        if recovery_of(facts, loss) is not None or facts.ends or restarted:
            continue
        what = f"the loss of replica {loss.slot} (generation {loss.generation}) has no recovery"
        went_on = any(
            commit.attempt == loss.attempt and commit.generation >= loss.generation
            for commit in facts.commits
        )
        if went_on and not log.gaps and not log.unreadable_places:
            what += ", yet steps were committed after it"
            violations.append(Violation(invariant="INV-7", what=what, step=-1))
        else:
            unproved.append(f"{what} in the journal, and the run has no end there")
    return violations, unproved


def _damage(facts: History, log: RunLog) -> list[str]:
    found = []
    if log.unreadable_places:
        first = log.unreadable[0]
        where = f"{sanitize(first.file, 80)}:{first.line}"
        found.append(
            f"{plural(log.unreadable_places, 'place')} of the journal cannot be read, "
            f"first {where}: {first.why}"
        )
    if facts.missing:
        found.append(lacking(facts))
    return found


def lacking(facts: History) -> str:
    """The records that the disk did not take, in words. The last of them may be counted nowhere."""
    since = f" from step {facts.missing_from} on" if facts.missing_from >= 0 else ""
    return f"records are missing{since}: the disk refused {facts.missing:,} or more"


def _notes(facts: History, uneven: Sequence[Commit]) -> list[str]:
    notes = []
    whole = facts.microbatches * len(facts.replicas)
    if uneven:
        steps = ranges(commit.step for commit in uneven)
        notes.append(f"replicas took unequally many microbatches to step {steps}")
    known = {(commit.attempt, commit.step) for commit in uneven}
    alike = [commit for commit in facts.commits if (commit.attempt, commit.step) not in known]
    for kind, others in (
        ("shorter", [c for c in alike if 0 < c.total < whole]),
        ("longer", [c for c in alike if 0 < whole < c.total]),
    ):
        if others:
            steps = ranges(commit.step for commit in others[:SHOWN])
            notes.append(f"the script's own {kind} steps, all replicas alike: {steps}")
    inferred = sum(len(commit.inferred) for commit in facts.commits)
    if inferred:
        notes.append(
            f"{plural(inferred, 'microbatch')} contributed by replicas that died before confirming"
        )
    for rank, step in sorted(facts.outvoted.items()):
        notes.append(
            f"rank {rank} held other parameters than the others at step {step} and left; the sums "
            "since they had last agreed hold gradients of these"
        )
    parts = [commit for commit in facts.commits if commit.part]
    if parts and facts.elsewhere:
        shown = f"replica{'s' * (len(facts.elsewhere) > 1)} {ranges(facts.elsewhere)}"
        notes.append(
            f"{plural(len(parts), 'step')}: what {shown} put in is known by the vote's "
            "count alone, without the journal of their nodes"
        )
    notes += _last(facts)
    if facts.attempts > 1:
        notes.append(f"the job was started {facts.attempts} times; each start is checked apart")
    if not facts.ends and facts.commits:
        notes.append(f"no end of the run: this is up to step {facts.commits[-1].step}")
    return notes


def _last(facts: History) -> list[str]:
    """The note on a step in which the run was ended: what is known by the vote alone."""
    if not facts.commits or facts.elsewhere or not _ended_in(facts.commits[-1], facts):
        return []
    commit = facts.commits[-1]
    silent = commit.total - commit.microbatches if commit.part else 0
    if silent <= 0:
        return []
    return [
        f"step {commit.step}: {plural(silent, 'microbatch')} known by the vote's count alone, as "
        "the run was ended before all had written down theirs"
    ]
