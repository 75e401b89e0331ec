"""A run as spans for tracing systems: the run itself, and in it each recovery, hang, return and
restart. A pure function of its records.

Names of spans and of traces are made from the run's id and from what they tell, so one that is sent
twice, or by two nodes, is the same span.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from recoverrun.reports import figures
from recoverrun.reports.goodput import goodput_json
from recoverrun.reports.history import History
from recoverrun.reports.recoveries import recovery_in
from recoverrun.reports.status import Watch
from rendezvous.journal.reader import Entry
from rendezvous.protocol.records import PART

Value = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpan:
    """Instants are seconds since 1970. `key` tells it from all others of its run, "" the run."""

    key: str
    name: str
    begin: float
    end: float
    attributes: Mapping[str, Value]
    failed: bool = False

    def id(self, run_id: str) -> int:
        """The 64 bits of the span's id."""
        return _bits(f"{run_id}/{self.key}", 8)


def trace_id(run_id: str) -> int:
    """The 128 bits of a run's trace."""
    return _bits(run_id, 16)


def _bits(text: str, size: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest()) or 1


@dataclass(slots=True)
class RunSpans:
    """Follows a journal, and gives spans as they end. It keeps a bounded number of steps."""

    watch: Watch
    _hangs: dict[int, tuple[float, str]] = field(default_factory=dict)  # by rank, since when
    _restart: tuple[float, str] | None = None  # since when all ranks start again, and why

    @property
    def facts(self) -> History:
        return self.watch.facts

    def add(self, entries: Iterable[Entry]) -> Iterator[RunSpan]:
        """The spans that new records end."""
        for entry in entries:
            self.watch.add([entry])
            if not entry.flag(PART):
                yield from self._ended(entry)

    def _ended(self, entry: Entry) -> Iterator[RunSpan]:
        attempt, rank = self.facts.attempt, entry.integer("rank")
        match entry.event:
            case "recovery.done":
                yield _recovery(entry, attempt)
            case "replica.prove":
                slot, step = entry.integer("slot"), entry.integer("step")
                way = self.facts.returns.at(slot, step)
                yield RunSpan(
                    key=f"return/{attempt}/{slot}/{step}",
                    name=f"return of replica {slot}",
                    begin=way.lost or entry.ts,
                    end=entry.ts,
                    attributes={
                        "recoverrun.replica": slot,
                        "recoverrun.step": step,
                        **{f"recoverrun.{name}": ms for name, ms in way.fields_ms.items()},
                    },
                )
            case "hang.suspect":
                since = entry.ts - max(0.0, entry.number("lag_s"))
                self._hangs.setdefault(rank, (since, entry.reason))
            case "hang.clear" | "hang.condemn" if rank in self._hangs:
                since, why = self._hangs.pop(rank)
                yield RunSpan(
                    key=f"hang/{attempt}/{rank}/{since:.6f}",
                    name=f"hang of rank {rank}",
                    begin=since,
                    end=entry.ts,
                    attributes={
                        "recoverrun.rank": rank,
                        "recoverrun.reason": why,
                        "recoverrun.where": entry.text("where"),
                    },
                    failed=entry.event == "hang.condemn",
                )
            case "job.restart":
                self._restart = entry.ts, entry.reason
            case "step.commit" if self._restart is not None:
                since, why = self._restart
                self._restart = None
                yield RunSpan(
                    key=f"restart/{attempt}",
                    name="restart of all ranks",
                    begin=since,
                    end=entry.ts,
                    attributes={"recoverrun.attempt": attempt, "recoverrun.reason": why},
                    failed=True,
                )

    def whole(self) -> RunSpan:
        """The run itself, as far as it has come."""
        facts, code = self.facts, self.facts.exit_code
        goodput = goodput_json(facts.time.goodput())
        return RunSpan(
            key="",
            name=f"run {facts.argv[0] if facts.argv else facts.run_id}",
            begin=facts.began,
            end=facts.latest,
            attributes={
                "recoverrun.run_id": facts.run_id,
                "recoverrun.promise": facts.promised,
                "recoverrun.exit_code": -1 if code is None else code,
                "recoverrun.steps_done": figures.steps_done(facts),
                "recoverrun.losses": len(facts.losses),
                "recoverrun.survived": figures.survived(facts),
                "recoverrun.lost_s": figures.lost_s(facts),
                "recoverrun.goodput_ratio": float(str(goodput["ratio"])),
            },
            failed=bool(code),
        )


def _recovery(entry: Entry, attempt: int) -> RunSpan:
    recovery = recovery_in(entry, attempt)
    return RunSpan(
        key=f"recovery/{attempt}/{recovery.generation}",
        name=f"recovery in step {recovery.step}",
        begin=entry.ts - max(0.0, recovery.total_ms) / 1000,
        end=entry.ts,
        attributes={
            "recoverrun.step": recovery.step,
            "recoverrun.replicas": ", ".join(map(str, recovery.slots)),
            "recoverrun.root_ranks": ", ".join(map(str, recovery.root_ranks)),
            "recoverrun.redone": recovery.redone,
            **{f"recoverrun.{name}_ms": ms for name, ms in recovery.parts_ms},
        },
    )
