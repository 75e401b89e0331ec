"""The coordinator's book of committed steps: one journal line a step, one for each recovery.

Nobody waits for this book. Survivors say what their replica put into a step after they have applied
it; the book adds the statements of all live ranks up to the step's ledger. A statement may be lost:
once its rank speaks of later steps, or others of much later ones, the line is written without it.
A replica that died after every survivor held all buckets is still in the sum: what nobody speaks
for was done by whoever the plan of that generation had given it to.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rendezvous.coordinator.digests import compared
from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.step_spending import StepSpending
from rendezvous.coordinator.stragglers import Stragglers
from rendezvous.journal.step_lines import step_reason
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Committed, Decision
from rendezvous.protocol.quota import identities, standing_quota
from rendezvous.protocol.records import Json, Record
from rendezvous.protocol.views import Identity

PATIENCE = 2
"""A statement is given up when its rank has spoken of a step this much newer."""

WAITING_MOST = 64
"""Steps whose lines wait for a rank that says nothing. Its launcher may be silent for long while it
trains on: a step that others have committed since is as good as its word, and memory has an end."""

Done = dict[int, frozenset[Identity]]
"""Slot -> the identities that it put into a step."""


@dataclass(slots=True)
class Page:
    """The knowledge of one step; `said_at` is when it was last spoken of."""

    step: int
    said: dict[int, Committed] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)  # ranks whose statement is not waited for
    said_at: float = 0.0


@dataclass(slots=True)
class Recovery:
    """One loss, until every survivor has committed in a generation without that replica."""

    loss: Loss
    decided_at: float | None = None


@dataclass(slots=True)
class StepBook:
    part: bool = False  # the ranks are those of one node, and a line speaks of them alone
    pages: dict[int, Page] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)  # rank -> newest step it committed
    written: int = -1  # the newest step that has its line
    recoveries: list[Recovery] = field(default_factory=list)
    committed_at: float = float("-inf")
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)  # generation -> live slots
    redos: dict[int, Decision] = field(default_factory=dict)  # generation -> its plan
    held: dict[int, int] = field(default_factory=dict)  # step -> generation of committed sums
    since: dict[int, int] = field(default_factory=dict)  # rank -> the step it came back for
    stragglers: Stragglers = field(default_factory=Stragglers)
    spending: StepSpending = field(default_factory=StepSpending)

    # --------------------------------------------------------------------------- recoveries

    def open(self, generation: int, live: tuple[int, ...]) -> None:
        """A generation begins with these slots."""
        self.members[generation] = live

    def join(self, ranks: Iterable[int], step: int) -> None:
        """These take part again from `step` on: of older ones they say nothing."""
        for rank in ranks:
            self.since[rank] = max(step, self.since.get(rank, 0))
            self.newest[rank] = max(step - 1, self.newest.get(rank, -1))
            for page in self.pages.values():
                if page.step < step and rank not in page.said:
                    page.late.add(rank)

    def lose(self, loss: Loss) -> None:
        self.recoveries.append(Recovery(loss=loss))

    def forget(self, slots: Iterable[int]) -> None:
        """These take part again: a step that they commit is no recovery from their loss."""
        gone = frozenset(slots)
        self.recoveries = [one for one in self.recoveries if one.loss.slot not in gone]

    @property
    def unmet(self) -> list[Loss]:
        """The losses that no step has made good."""
        return [one.loss for one in self.recoveries]

    def root(self) -> Loss:
        """The first failure of those that no step has made good."""
        return min(self.unmet, key=lambda loss: loss.order)

    def decide(self, decision: Decision, now: float) -> None:
        if decision.verdict == "commit":
            self.held[decision.step] = decision.held
        else:
            self.redos[decision.generation] = decision
        for recovery in self.recoveries:
            concerned = recovery.loss.generation <= decision.generation
            if concerned and recovery.decided_at is None:
                recovery.decided_at = now

    def passed(self, step: int, ranks: Iterable[int]) -> bool:
        """True if all `ranks` have committed `step`."""
        return all(self.newest.get(rank, -1) >= step for rank in ranks)

    # --------------------------------------------------------------------------- the account

    def enter(self, committed: Committed, now: float, *, live: int) -> bool:
        """Note one rank's statement; True if there could be a line to write now, of so many `live`
        ranks.
        """
        rank, step = committed.rank, committed.step
        self.newest[rank] = max(step, self.newest.get(rank, -1))
        if step > self.written:
            page = self.pages.get(step) or self._new_page(step)
            page.said.setdefault(rank, committed)
            page.said_at = now
        for page in self.pages.values():
            if rank in page.said:
                page.late.discard(rank)
            elif self._gave_up(rank, page.step):
                page.late.add(rank)
        first = self.pages.get(min(self.pages, default=-1))
        # Counted: to look at all ranks with every statement would be too much among thousands.
        return first is not None and (
            len(first.said) + len(first.late) >= live or step >= first.step + WAITING_MOST
        )

    def _new_page(self, step: int) -> Page:
        late = {rank for rank in self.newest if self._gave_up(rank, step)}
        page = self.pages[step] = Page(step=step, late=late)
        return page

    def _gave_up(self, rank: int, step: int) -> bool:
        """True if this rank says nothing of `step` any more: it is far beyond it, or was away."""
        return self.newest[rank] >= step + PATIENCE or step < self.since.get(rank, 0)

    def write(
        self, layout: Layout, live_ranks: frozenset[int], *, final: bool = False
    ) -> list[Record]:
        """The lines of all steps that every live rank has spoken of; `final`: of any other too."""
        records: list[Record] = []
        for step in sorted(self.pages):
            page = self.pages[step]
            anyone = bool(live_ranks & page.said.keys())
            if not (anyone if final else self._complete(page, live_ranks)):
                break  # lines are in the order of steps
            del self.pages[step]
            self.written = step
            self.committed_at = page.said_at
            if self.part:
                records.append(_part_line(page, layout))
            else:
                members = self._took_part(page, live_ranks)
                records.append(_line(page, layout, members, self._plan(page, layout)))
            looked = {r: one.digest for r, one in page.said.items() if r in live_ranks}
            records += [*compared(step, looked, layout), *self._recovered(page, layout, live_ranks)]
            records += self.stragglers.step(step, page.said)
            records += [] if self.part else self.spending.step(step, page.said)
        return records

    def close(
        self, layout: Layout | None, live_ranks: frozenset[int], now: float, *, well: bool
    ) -> list[Record]:
        """The job is over: what there is left to say."""
        records = [] if layout is None else self.write(layout, live_ranks, final=True)
        records += [] if self.part else self.spending.close()
        return [*records, *(self._conclude(now) if well else ())]

    def _conclude(self, now: float) -> list[Record]:
        """The job ended well: losses that no step has met any more had taken nothing with them."""
        left, self.recoveries = self.recoveries, []
        if not left:
            return []
        losses = sorted((one.loss for one in left), key=lambda loss: loss.slot)
        detect_ms = 1000 * max(loss.detected_s for loss in losses)
        begun_at = min(loss.lost_at for loss in losses)
        fields: dict[str, Json] = {
            "generation": max(loss.generation for loss in losses),
            "slots": [loss.slot for loss in losses],
            "root_ranks": [loss.root_rank for loss in losses],
            "step": self.written,
            "redone": [],
            "detect_ms": round(detect_ms, 3),
            "agree_ms": 0.0,
            "total_ms": round(detect_ms + 1000 * (now - begun_at), 3),
        }
        fields |= {f"{name}_ms": 0.0 for name in ("rebuild", "redo", "reduce", "vote")}
        reason = f"step {self.written}, the last one, was whole already"
        return [Record("recovery.done", reason, fields)]

    def _complete(self, page: Page, live_ranks: frozenset[int]) -> bool:
        late = [rank for rank in self._took_part(page, live_ranks) if rank not in page.said]
        gap = page.step > self.written + 1  # of earlier steps nobody has spoken yet
        if gap and not self.passed(page.step - 1 + PATIENCE, live_ranks):
            return False
        furthest = max(self.newest.values(), default=-1)
        return furthest >= page.step + WAITING_MOST or self.passed(page.step + PATIENCE, late)

    def _took_part(self, page: Page, live_ranks: Iterable[int]) -> list[int]:
        """Those who are live, and were when the step was committed."""
        return [rank for rank in live_ranks if self.since.get(rank, 0) <= page.step]

    def _plan(self, page: Page, layout: Layout) -> Done:
        """The plan of the step, by replica, in the generation in which it was reduced."""
        said_in = max(one.generation for one in page.said.values())
        generation = self.held.pop(page.step, said_in)
        redo = self.redos.get(generation)
        if redo is not None and redo.step == page.step:
            return {slot: frozenset(targets) for slot, targets in redo.targets}
        live = self.members.get(generation) or layout.slots
        microbatches = _total(page) // len(layout.slots)
        extra = standing_quota(live, layout.slots, microbatches)
        return {
            slot: frozenset((*identities((slot,), microbatches), *extra[slot])) for slot in live
        }

    def _recovered(self, page: Page, layout: Layout, live_ranks: frozenset[int]) -> list[Record]:
        said = [page.said[rank] for rank in sorted(live_ranks) if rank in page.said]
        reached = min((one.generation for one in said), default=0)
        done = [one for one in self.recoveries if one.loss.generation <= reached]
        if not done:
            return []
        self.recoveries = [one for one in self.recoveries if one.loss.generation > reached]
        losses = sorted((one.loss for one in done), key=lambda loss: loss.slot)
        begun_at = min(loss.lost_at for loss in losses)
        decided_at = max((r.decided_at for r in done if r.decided_at is not None), default=begun_at)
        detect_ms = 1000 * max(loss.detected_s for loss in losses)
        redone = sorted({identity for one in said for identity in one.redone})
        fields: dict[str, Json] = {
            "generation": reached,
            "slots": [loss.slot for loss in losses],
            "root_ranks": [loss.root_rank for loss in losses],
            "step": page.step,
            "redone": [list(identity) for identity in redone],
            "total": _total(page),  # all of them: a step with fewer is never applied
            "live": len(self.members.get(max(self.members, default=-1), layout.slots)),
            "of": len(layout.replicas),
            "detect_ms": round(detect_ms, 3),
            "agree_ms": round(1000 * (decided_at - begun_at), 3),
            "total_ms": round(detect_ms + 1000 * (page.said_at - begun_at), 3),
        }
        phases = _slowest(said)
        for name in ("rebuild", "redo", "reduce", "vote"):
            fields[f"{name}_ms"] = round(phases.get(name, 0.0), 3)
        names = " and ".join(f"replica {loss.slot}" for loss in losses)
        reason = f"step {page.step} is committed without {names}"
        return [Record("recovery.done", reason, fields)]


def _slowest(said: Iterable[Committed]) -> dict[str, float]:
    """Milliseconds of each phase on the rank that took longest."""
    slowest: dict[str, float] = {}
    for one in said:
        for name, ms in one.phases:
            slowest[name] = max(ms, slowest.get(name, 0.0))
    return slowest


def _total(page: Page) -> int:
    """B, as the votes counted it."""
    return max(one.total for one in page.said.values())


def _said(page: Page, layout: Layout) -> Done:
    """The work that each replica is said to have put into the step, by one of its ranks."""
    done: Done = {}
    for rank in sorted(page.said):
        done.setdefault(layout.slot(rank), frozenset(page.said[rank].done))
    return done


def _fields(page: Page, done: Done, home: Done) -> dict[str, Json]:
    """The fields of a step's record in which `done` is known; `home`: what is usual there."""
    fields: dict[str, Json] = {
        "step": page.step,
        "generation": max(one.generation for one in page.said.values()),
        "quota": {str(slot): len(done[slot]) for slot in sorted(done)},
        "redone": len({identity for one in page.said.values() for identity in one.redone}),
        "microbatches": sum(len(ids) for ids in done.values()),
        "total": _total(page),
        "ms": round(_slowest(page.said.values()).get("step", 0.0), 3),
    }
    if done != home:
        moved: dict[str, Json] = {
            str(slot): [list(identity) for identity in sorted(done[slot])] for slot in sorted(done)
        }
        fields["done"] = moved
    return fields


def _part_line(page: Page, layout: Layout) -> Record:
    """The record of one committed step as far as one node's ranks have told it."""
    done = _said(page, layout)
    microbatches = _total(page) // len(layout.slots)
    fields = _fields(page, done, _home(done, microbatches))
    reason = step_reason(page.step, fields["microbatches"], fields["total"])
    return Record("step.part", reason, fields)


def _home(slots: Iterable[int], microbatches: int) -> Done:
    return {slot: frozenset(identities((slot,), microbatches)) for slot in slots}


def _line(page: Page, layout: Layout, live_ranks: Iterable[int], plan: Done) -> Record:
    """The aggregated record of one committed step."""
    total = _total(page)
    microbatches = total // len(layout.slots)
    done = _said(page, layout)
    seen = {identity for ids in done.values() for identity in ids}
    home = identities(layout.slots, microbatches)
    rest = [] if len(seen) == total else [i for i in home if i not in seen]
    planned = {identity: slot for slot in sorted(plan) for identity in plan[slot]}
    for identity in rest:  # in the sum, by a replica that did not live to say so
        slot = planned.get(identity, identity[0])
        done[slot] = done.get(slot, frozenset()) | {identity}
    fields = _fields(page, done, _home(layout.slots, microbatches))
    if rest:
        fields["inferred"] = [list(identity) for identity in rest]
    unseen: list[Json] = [rank for rank in sorted(live_ranks) if rank not in page.said]
    if unseen:
        fields["unseen"] = unseen
    reason = step_reason(page.step, fields["microbatches"], total)
    return Record("step.commit", reason, fields)
