"""Books the time of a run as its records come, and gives its `Goodput` at any moment.

Pure and bounded: records in, in the order of the journal, in whatever pieces. Time passes from one
record to the next; a committed step takes as much of the time since the one before it as its ranks
say that it lasted, and what losses, returns and hangs cost is taken out of the step that it struck.
What no step claims is unknown.

Steps are counted anew in each attempt. Those that the script had done before a restart, as far as
`script_steps` knows, are no useful ones.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from recoverrun.reports.goodput import BUCKETS, RECOVERY, Bucket, Goodput
from recoverrun.reports.recoveries import recovery_in
from recoverrun.reports.script_steps import ScriptSteps
from recoverrun.reports.step_spans import StepSpans, beyond_usual
from rendezvous.journal.reader import Entry
from rendezvous.protocol.records import PART

AGREED = 2
"""Parts of a recovery before members do anything for it."""

EARLY = 8
"""Steps of an attempt after its first that warm up, as far as they are longer than usual."""

SPENT: tuple[Bucket, ...] = ("imbalance", "data", "checkpoint", "alone")
"""What steps spend beside computing."""

ALWAYS = ("useful", "unknown")
"""Buckets that are named also where they are empty."""


class _Kind(NamedTuple):
    """Steps that take equally long: as many replicas, of which one has as much to do."""

    slots: int
    more: int = 0  # microbatches of others
    most: int = 1  # of so many


@dataclass(slots=True)
class _Step:
    """The newest committed step: what it cost beside its work may still be told."""

    span_us: int
    first: bool  # of its attempt
    early: bool
    again: bool  # the script had done it before
    kind: _Kind
    costs: Counter[Bucket] = field(default_factory=Counter)

    def work_us(self, booked: Counter[Bucket]) -> int:
        """Book what it cost; what is left of it."""
        left = self.span_us
        for bucket, cost_us in self.costs.items():
            taken = min(left, cost_us)
            booked[bucket] += taken
            left -= taken
        return left


@dataclass(slots=True)
class _Accounts:
    """Steps that are closed."""

    booked: Counter[Bucket] = field(default_factory=Counter)
    spans: dict[_Kind, StepSpans] = field(default_factory=dict)
    again: dict[_Kind, StepSpans] = field(default_factory=dict)  # of steps that were done before
    firsts: list[tuple[Bucket, int, bool, _Kind]] = field(default_factory=list)  # with their spans
    early: list[tuple[int, _Kind]] = field(default_factory=list)
    steps: int = 0

    def close(self, step: _Step | None, attempt: int) -> None:
        if step is None:
            return
        self.steps += 1
        work_us = step.work_us(self.booked)
        if step.first:
            bucket: Bucket = "restart" if attempt else "startup"
            self.firsts.append((bucket, work_us, step.again, step.kind))
        elif step.again:
            self.again.setdefault(step.kind, StepSpans()).add(work_us)
        elif step.early:
            self.early.append((work_us, step.kind))
        else:
            self.spans.setdefault(step.kind, StepSpans()).add(work_us)

    def copy(self) -> "_Accounts":
        spans = {kind: known.copy() for kind, known in self.spans.items()}
        again = {kind: known.copy() for kind, known in self.again.items()}
        return _Accounts(
            self.booked.copy(), spans, again, [*self.firsts], [*self.early], self.steps
        )

    def usual_us(self, kind: _Kind) -> int:
        """The usual step of this kind, 0 unknown.

        Of few steps it is told from those of the kind, with as many replicas, that has most.
        """
        of: Counter[_Kind] = Counter(one for _, one in self.early)
        of.update({one: known.steps for one, known in self.spans.items()})
        alike = [one for one in of if one.slots == kind.slots]
        if not alike:
            return 0
        best = kind if of[kind] >= EARLY else max(alike, key=lambda one: (of[one], -one.more))
        known = self.spans.get(best, StepSpans())
        if known.steps < EARLY:
            known = known.copy()
            for span_us, one in self.early:
                if one == best:
                    known.add(span_us)
        own = best.most - best.more, kind.most - kind.more
        return known.usual_us() * own[0] * kind.most // (best.most * own[1])

    def settle(self, spent: Mapping[Bucket, int]) -> int:
        """Book all work; the useful time of all replicas together.

        What steps have `spent` beside computing made some of them long: it is taken out of that
        first, and what is more out of the useful time.
        """
        work: Counter[_Kind] = Counter()
        for kind, known in self.spans.items():
            work[kind], beyond = known.split(self.usual_us(kind))
            self.booked["long"] += beyond
        wanted = +Counter(spent)
        for kind, known in self.again.items():
            again_us, beyond = known.split(self.usual_us(kind))
            self.booked["again"] += again_us
            self.booked["long"] += beyond
        for bucket, us in wanted.items():
            taken = min(us, self.booked["long"])
            self.booked["long"] -= taken
            self.booked[bucket] += taken
            wanted[bucket] -= taken
        for kind in sorted(work):
            for bucket in wanted:
                taken = min(work[kind], wanted[bucket])
                wanted[bucket] -= taken
                self.booked[bucket] += taken
                work[kind] -= taken
        for bucket, span_us, again, kind in self.firsts:
            usual = min(span_us, self.usual_us(kind))
            self.booked[bucket] += span_us - usual
            if again:
                self.booked["again"] += usual
            else:
                work[kind] += usual
        for span_us, kind in self.early:
            beyond = beyond_usual(span_us, self.usual_us(kind))
            work[kind] += span_us - beyond
            self.booked["warm-up"] += beyond
        useful_us = 0
        for kind, us in work.items():
            degraded = us * kind.more // kind.most
            self.booked["degraded"] += degraded
            self.booked["useful"] += us - degraded
            useful_us += max(1, kind.slots) * (us - degraded)
        return useful_us


@dataclass(slots=True)
class TimeBook:
    """Follows one run; `take` its records in the order of the journal."""

    _began_us: int = -1
    _now_us: int = 0
    _since_us: int = 0  # since the newest committed step
    _open_us: int = 0  # before it, and claimed by no step so far
    begun: list[float] = field(default_factory=list)  # when attempts after the first one did
    script: ScriptSteps = field(default_factory=ScriptSteps)
    _attempt: int = 0
    _newest: int = -1  # step of this attempt
    _in_attempt: int = 0  # steps
    _slots: int = 0
    _most: int = 0  # replicas that the job had at most
    _live: int = 0  # replicas that take part, 0: all
    _alive_us: int = 0  # of them together
    _whole_us: int = 0  # time in which all took part, whose number may not be known yet
    _coordinated: bool = False  # parts that nodes tell of a step are in its record, too
    _ended: bool = False
    _joined: bool = False  # a process says of its first step how long it is there
    _kinds: tuple[_Kind, _Kind] = (_Kind(0), _Kind(0))  # of the last step but one, of the last
    _raw: tuple[object, int] = (None, 0)  # the quotas and replicas that the last is told by
    _last: _Step | None = None
    _costs: Counter[Bucket] = field(default_factory=Counter)  # of the step under way
    _spent: Counter[Bucket] = field(default_factory=Counter)  # in steps, beside computing
    _done: _Accounts = field(default_factory=_Accounts)
    _recovered: set[tuple[int, int]] = field(default_factory=set)
    _hung: set[int] = field(default_factory=set)  # ranks that were given up
    _suspects: dict[int, int] = field(default_factory=dict)  # rank -> since when

    def take(self, entry: Entry, attempt: int, slots: int) -> None:
        """One record; `slots` is the number of replicas as far as is known, 0 for none."""
        self._advance(round(entry.ts * 1e6))
        if attempt > self._attempt:
            self._begin(attempt)
        if slots != self._slots:
            self._alive_us += self._whole_us * self._slots
            self._whole_us = self._whole_us if not self._slots else 0
            self._slots, self._most, self._live = slots, max(self._most, slots), 0
        self.script.hear(entry)
        if self._last is not None:
            self._last.again = self.script.newest_again
        match entry.event:
            case "node.join":
                self._coordinated = True
            case "step.commit" | "step.part":
                self._commit(entry)
            case "view.change":
                live = len(entry.integers("live"))
                self._live = live if live < self._slots else 0
            case "recovery.done":
                self._recovery(entry)
            case "replica.return":
                self._joined = True
                self._costs["rejoin"] += _us(entry.number("hold_ms"))
            case "hang.suspect":
                since = self._now_us - _us(1000 * entry.number("lag_s"))
                self._suspects.setdefault(entry.integer("rank"), since)
            case "hang.clear" | "hang.condemn":
                self._looked_at(entry)
            case "hang.stick":
                self._costs["stall"] += _us(1000 * entry.number("lag_s"))
            case "time.spend":
                for bucket in SPENT:
                    self._spent[bucket] += _us(entry.number(f"{bucket}_ms"))
            case "journal.drop":
                if entry.integer("step") >= 0:  # No record tells of this time.
                    self._open_us, self._since_us = self._open_us + self._since_us, 0
            case "run.end":
                self._ended = True

    def goodput(self) -> Goodput:
        """The goodput of all that was taken so far."""
        done = self._done.copy()
        done.close(self._last, self._attempt)
        work_us = done.settle(self._spent)
        booked = done.booked
        booked["unknown"] += self._open_us
        booked[self._tail()] += self._since_us
        return Goodput(
            wall_us=max(0, self._now_us - self._began_us),
            buckets={name: booked[name] for name in BUCKETS if booked[name] or name in ALWAYS},
            steps=done.steps,
            again=self.script.again,
            usual_us=done.usual_us(_Kind(self._slots)),
            work_us=work_us,
            allocated_us=max(0, self._now_us - self._began_us) * max(1, self._most),
            alive_us=self._alive_us + self._whole_us * max(1, self._slots),
        )

    def _tail(self) -> Bucket:
        """The bucket of the time after the newest step."""
        if self._ended and self._done.steps + (self._last is not None):
            return "ending"
        if not self._in_attempt:
            return "restart" if self._attempt else "startup"
        return "stall" if self._suspects else "underway"

    def _advance(self, now_us: int) -> None:
        if self._began_us < 0:
            self._began_us = self._now_us = now_us
        passed = max(0, now_us - self._now_us)
        self._now_us += passed
        self._since_us += passed
        if self._live:
            self._alive_us += passed * self._live
        else:
            self._whole_us += passed

    def _begin(self, attempt: int) -> None:
        """All processes are new."""
        self.begun.append(self._now_us / 1e6)
        self._done.close(self._last, self._attempt)
        self._last, self._attempt, self._newest, self._in_attempt = None, attempt, -1, 0
        self._live, self._joined = 0, False
        self.script.begin(attempt)
        self._costs.clear()
        self._suspects.clear()
        self._hung.clear()

    def _commit(self, entry: Entry) -> None:
        number = entry.integer("step")
        if number <= self._newest or (entry.event == "step.part" and self._coordinated):
            return
        self._done.close(self._last, self._attempt)
        first, told_us = not self._in_attempt, _us(entry.number("ms"))
        span_us = self._since_us
        if told_us and not first and not self._joined:
            span_us = min(told_us, self._since_us + self._open_us)
            self._open_us += self._since_us - span_us
        raw = entry.fields.get("quota"), self._slots
        kind = self._kinds[1]
        if first or raw[0] is not self._raw[0] or raw[1] != self._raw[1]:
            kind = _kind(entry, self._slots)
        self._raw = raw
        self._kinds = _Kind(self._slots) if first else self._kinds[1], kind
        self.script.commit(number)
        self._last = _Step(
            span_us=span_us,
            first=first,
            early=self._in_attempt <= EARLY,
            again=self.script.newest_again,
            kind=kind,
            costs=self._costs,
        )
        self._costs = Counter()
        self._newest, self._since_us, self._joined = number, 0, False
        self._in_attempt += 1

    def _recovery(self, entry: Entry) -> None:
        """Account for the loss that the step just committed has recovered from."""
        which = self._attempt, entry.integer("generation")
        step = self._last
        if which in self._recovered or step is None or (entry.flag(PART) and self._coordinated):
            return
        self._recovered.add(which)
        recovery = recovery_in(entry)
        if not any(ms for _, ms in recovery.parts_ms[AGREED:]):
            return  # The run was over: no step has met it.
        hung = self._hung & {*recovery.root_ranks}
        self._hung -= hung
        parts = dict(recovery.parts_ms)
        told = {bucket: _us(parts[bucket]) for bucket in RECOVERY if bucket in parts}
        told["recovery"] = max(0, _us(recovery.total_ms) - sum(told.values()))
        for bucket, us in told.items():
            step.costs["stall" if bucket == "detect" and hung else bucket] += us
        step.kind = self._kinds[0]  # Microbatches taken over are in the time to redo them.

    def _looked_at(self, entry: Entry) -> None:
        """A suspect goes on, or is given up."""
        rank = entry.integer("rank")
        since = self._suspects.pop(rank, None)
        if entry.event == "hang.condemn":
            self._hung.add(rank)  # The recovery's record has the time that others waited.
        elif since is not None and not self._suspects:
            self._costs["stall"] += self._now_us - since


def _kind(entry: Entry, slots: int) -> _Kind:
    """Among equal replicas a step is longer by what the one with the most does for others."""
    home = max(0, entry.integer("total", 0)) // max(1, slots)
    quotas = entry.fields.get("quota")
    counts = quotas.values() if isinstance(quotas, dict) else ()
    most = max((count for count in counts if isinstance(count, int)), default=0)
    return _Kind(slots, most - home, most) if most > home > 0 else _Kind(slots)


def _us(ms: float) -> int:
    return max(0, round(1000 * ms))
