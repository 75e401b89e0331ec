"""The conclusions from the reports of one generation: pure answers to the coordinator's questions.

A gathering is complete when every member that still runs its script waits at the commit point of
the same step. Until then two things can already be said to single ranks, because waiting for the
others would be a deadlock: "commit" to one that is a step behind, and "level" to one whose shard
mates are in the middle of a microbatch that they cannot finish without it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rendezvous.coordinator.ledger import Ledger
from rendezvous.coordinator.members import Membership
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Decision, Report
from rendezvous.protocol.quota import share_out
from rendezvous.protocol.rank_differences import unequal
from rendezvous.protocol.records import Json, Record
from rendezvous.protocol.views import Identity

RESEND_AFTER_S = 0.5
"""A view without an answer is sent again: messages may be lost."""

RESEND_RANKS = 1000
"""So many are answered within that; among more the same view would be sent while answers wait."""

Reports = Mapping[int, Report]
"""By rank, those of one generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """The reports contradict each other: an invariant does not hold. `rank` is -1 for several."""

    invariant: str
    reason: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """The script's ranks differ in what they compute: no microbatches can be shared out."""

    reason: str
    step: int = -1
    taken: Mapping[int, int] = field(default_factory=dict)  # by rank: microbatches, if these differ


def resend_after(ranks: int) -> float:
    """Seconds until a view that was sent to so many is sent to the silent ones again."""
    return RESEND_AFTER_S * max(1.0, ranks / RESEND_RANKS)


@dataclass(slots=True)
class Gathering:
    """One generation on its way to its decision."""

    generation: int
    begun_at: float
    resend_at: float
    reports: dict[int, Report] = field(default_factory=dict)
    decisions: dict[int, Decision] = field(default_factory=dict)  # newest one told to each rank
    decided: bool = False  # by a "redo": nothing is gathered any more in this generation
    newest: int = -1  # the largest step that was reported
    first: int = -1  # the rank that reported it first
    waiting: Counter[int] = field(default_factory=Counter)  # ranks at the commit point of a step

    def take(self, report: Report) -> bool:
        """Keep `report`. False if a later one of its rank overtook it on the way."""
        known = self.reports.get(report.rank)
        if known is not None and _progress(report) < _progress(known):
            return False
        if known is not None and known.phase == "settle":
            self.waiting[known.step] -= 1
        if report.phase == "settle":
            self.waiting[report.step] += 1
        if report.step > self.newest:
            self.newest, self.first = report.step, report.rank
        self.reports[report.rank] = report
        return True

    def concern(self, rank: int, members: Membership) -> list[int]:
        """The ranks whose reports that of `rank` may say something about.

        Every rank reports, so a look at all of them must not follow each: what one says concerns
        its shard mates, unless it is the first at the newest step, or the last one there.
        """
        last = self.waiting[self.newest] >= len(members.running)
        return members.running if last or rank == self.first else members.mates(rank)

    def of(self, ranks: Iterable[int]) -> Reports:
        return {rank: self.reports[rank] for rank in ranks if rank in self.reports}

    def answer(self, report: Report) -> Decision | None:
        """The decision for this rank and the step at which it waits, if it shows no sign of it."""
        decision = self.decisions.get(report.rank)
        if decision is None or decision.step != report.step or report.phase != "settle":
            return None
        return None if obeyed(decision, report) else decision

    def committed(self, step: int) -> bool:
        """True if anybody was told to commit `step`."""
        return any(d.verdict == "commit" and d.step == step for d in self.decisions.values())

    @property
    def step(self) -> int:
        """The newest step that anything was decided for, -1 if none."""
        return max((decision.step for decision in self.decisions.values()), default=-1)


def _progress(report: Report) -> tuple[int, bool, int]:
    """Grows with the reports of one rank in one generation, except where it levels with others."""
    return report.step, report.phase == "settle", len(report.done)


def obeyed(decision: Decision, report: Report) -> bool:
    """True if the rank that waits at the step of `decision` has done what it says."""
    return decision.verdict == "level" and _joins(decision) <= set(report.done)


def _joins(decision: Decision) -> set[Identity]:
    """The microbatches that a "level" has a rank compute together with its shard mates."""
    level = decision.targets if decision.verdict == "level" else ()
    return {identity for _, identities in level for identity in identities}


def laggard(reports: Reports, newest: int) -> Contradiction | None:
    """Whoever is behind is one step behind and holds it whole: the vote proved it."""
    for rank in sorted(reports):
        report = reports[rank]
        behind = newest - report.step
        if behind > 1 or (behind == 1 and not report.reduced):
            reason = (
                f"rank {rank} is at step {report.step} ({report.phase}, reduced in "
                f"{report.reduced}) while another survivor is at {newest}"
            )
            return Contradiction(invariant="INV-9", reason=reason, rank=rank)
    return None


def catch_ups(gathering: Gathering, reports: Reports, newest: int) -> dict[int, Decision]:
    """The commit of each rank that is a step behind, unless it was told already."""
    found: dict[int, Decision] = {}
    for rank in sorted(reports):
        report = reports[rank]
        known = gathering.decisions.get(rank)
        told = known is not None and known.verdict == "commit" and known.step == report.step
        if report.step < newest and not told:
            found[rank] = commit(gathering.generation, report.step, report.reduced)
    return found


def levels(gathering: Gathering, reports: Reports, layout: Layout) -> dict[int, Decision]:
    """The orders to ranks at the commit point whose shard mates have begun to compute.

    Ranks of a replica compute in lockstep. A view may reach one of them just before and another
    just after the start of a re-executed microbatch: the one that waits has to join.
    A mate that hears of the view late may go on to its next one: then they have to join again.
    """
    found: dict[int, Decision] = {}
    for rank in sorted(reports):
        report = reports[rank]
        if report.phase != "settle":
            continue
        slot = layout.slot(rank)
        mates = [reports[mate] for mate in layout.replicas[slot] if mate in reports]
        begun = {i for mate in mates if mate.step == report.step for i in mate.begun}
        lacking = tuple(sorted(begun - set(report.done)))
        known = gathering.decisions.get(rank)
        told = known is not None and known.step == report.step and set(lacking) <= _joins(known)
        if lacking and not told:
            found[rank] = Decision(
                generation=gathering.generation,
                step=report.step,
                verdict="level",
                held=0,
                targets=((slot, lacking),),
            )
    return found


def settled(gathering: Gathering, reports: Reports, newest: int) -> bool:
    """True if all of `reports` wait at the commit point of `newest`, with nothing begun."""
    for rank, report in reports.items():
        if report.step != newest or report.phase != "settle":
            return False
        known = gathering.decisions.get(rank)
        leveling = known is not None and known.verdict == "level" and known.step == newest
        if known is not None and leveling and not obeyed(known, report):
            return False
    return True


def held_by_all(reports: Reports) -> int:
    """The generation in which every one of `reports` holds every bucket reduced, 0 if none."""
    held = {report.reduced for report in reports.values()}
    return held.pop() if len(held) == 1 else 0


def commit(generation: int, step: int, held: int) -> Decision:
    return Decision(generation=generation, step=step, verdict="commit", held=held, targets=())


def redo(
    generation: int, reports: Reports, members: Membership, *, wary: bool = False
) -> Decision | Unequal | Contradiction:
    """Deal the missing identities of the step out to the live replicas, whose ranks all wait.

    `wary`: a rank that hung has not left yet what it was at, and it may have been at any of them.
    """
    layout, live = members.layout, members.live
    assert layout is not None, "replicas are known once anything is gathered"
    step = max(report.step for report in reports.values())
    taken = {rank: report.microbatches for rank, report in reports.items()}
    counts = sorted(set(taken.values()))
    if len(counts) != 1:
        return Unequal(reason=unequal(step, taken), step=step, taken=taken)
    ledger = Ledger(slots=layout.slots, microbatches=counts[0])
    for slot in live:
        sets = [frozenset(reports[rank].done) for rank in layout.replicas[slot]]
        if any(done != sets[0] for done in sets):
            reason = f"the ranks of replica {slot} hold different microbatches of step {step}"
            return Contradiction(invariant="INV-1", reason=reason, rank=-1)
        ledger.credit(slot, sets[0])
    if ledger.fault():
        return Contradiction(invariant="INV-1", reason=ledger.fault(), rank=-1)
    credits = {slot: ledger.credits[slot] for slot in sorted(ledger.credits)}
    extra = share_out(ledger.missing(), {slot: len(done) for slot, done in credits.items()})
    targets: tuple[tuple[int, tuple[Identity, ...]], ...] = tuple(
        (slot, tuple(sorted(done | set(extra[slot])))) for slot, done in credits.items()
    )
    return Decision(
        generation=generation,
        step=step,
        verdict="redo",
        held=0,
        targets=targets,
        suspects=ledger.missing() if wary else members.suspects(step),
    )


def announcement(decision: Decision, reason: str) -> Record:
    targets: list[Json] = [[slot, [list(i) for i in ids]] for slot, ids in decision.targets]
    fields: dict[str, Json] = {
        "generation": decision.generation,
        "step": decision.step,
        "verdict": decision.verdict,
        "targets": targets,
    }
    return Record("decision.make", reason, fields)
