"""The series that a monitoring system gets of a run: names, labels and values, from the journal.

Labels are node, replica and class, so there are as many series as nodes and replicas, never as many
as steps or ranks. Counters only grow while a run goes on.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from recoverrun.reports import figures
from recoverrun.reports.goodput import Goodput
from recoverrun.reports.history import History
from recoverrun.reports.recoveries import PARTS
from recoverrun.reports.root_cause import losses_of
from recoverrun.reports.slow_ranks import SlowRanks
from recoverrun.reports.status import Status, Watch
from rendezvous.journal.reader import Entry

PREFIX = "recoverrun_"

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of recoveries."""

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One name: its values by the values of its labels. A histogram has all that it counted."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    values: Sequence[tuple[tuple[str, ...], float]] = ()


@dataclass(slots=True)
class MeteredRun:
    """Follows a run's journal, and gives its series at any instant."""

    watch: Watch
    hangs: int = 0
    _slow: SlowRanks = field(default_factory=SlowRanks)

    def add(self, entries: Sequence[Entry]) -> None:
        self.watch.add(entries)
        for entry in entries:
            self.hangs += entry.event in ("hang.condemn", "hang.stick", "hang.part")
            self._slow.take(entry)

    def series(self, now: float) -> list[Series]:
        """`now` is in seconds since 1970."""
        facts, status = self.watch.facts, self.watch.status(now)
        return [
            *_run(facts, status),
            *_steps(status),
            *_replicas(facts, status),
            *_losses(facts, status),
            *_time(facts.time.goodput()),
            _plain("hangs_total", "counter", "Ranks or operations that hung.", self.hangs),
            _plain("stragglers_total", "counter", "Ranks found slow.", len(self._slow.found)),
        ]


def _plain(name: str, kind: Kind, help: str, value: float) -> Series:
    return Series(name=PREFIX + name, kind=kind, help=help, values=[((), float(value))])


def _by(
    name: str, kind: Kind, help: str, label: str, values: Iterable[tuple[object, float]]
) -> Series:
    return Series(
        name=PREFIX + name,
        kind=kind,
        help=help,
        labels=(label,),
        values=[((str(key),), float(value)) for key, value in values],
    )


def _run(facts: History, status: Status) -> list[Series]:
    ended = status.exit_code is not None
    found = [
        _by(
            "run_info", "gauge", "1; the class is what is promised.", "class", [(status.promise, 1)]
        ),
        _plain("run_start_seconds", "gauge", "When the run began, since 1970.", status.began),
        _plain("last_record_seconds", "gauge", "When it was last heard of.", status.latest),
        _plain("run_ended", "gauge", "1 once the run is over.", ended),
        _plain("restarts_total", "counter", "Attempts after the first.", status.restarts),
        _plain("invariant_breaks_total", "counter", "Broken invariants.", len(facts.breaks)),
        _plain("missing_records_total", "counter", "Records no disk took.", facts.missing),
    ]
    if status.exit_code is not None:
        found.append(_plain("exit_code", "gauge", "Of the run.", status.exit_code))
    return found


def _steps(status: Status) -> list[Series]:
    # Those that were redone are known only as the recovery is over, so the two are no classes.
    moved = status.redone_microbatches + status.taken_over_microbatches
    return [
        _plain(
            "last_step", "gauge", "Newest committed step, -1 before the first.", status.last_step
        ),
        _plain("steps_total", "counter", "Committed steps.", status.steps),
        _plain(
            "steps_again_total", "counter", "Of them, done before a restart.", status.steps_again
        ),
        _plain(
            "inexact_steps",
            "gauge",
            "Steps that the journal does not show to have each microbatch once.",
            status.steps - status.exact,
        ),
        _plain("step_seconds", "gauge", "The newest step.", status.step_ms / 1000),
        _plain(
            "median_step_seconds", "gauge", "Without losses' cost.", status.median_step_ms / 1000
        ),
        _plain("step_microbatches", "gauge", "Of the newest step.", status.microbatches),
        _plain("moved_microbatches_total", "counter", "Computed by other replicas.", moved),
        _plain(
            "redone_microbatches_total",
            "counter",
            "Of those, lost in their step.",
            status.redone_microbatches,
        ),
    ]


def _replicas(facts: History, status: Status) -> list[Series]:
    classes = Counter(
        "live" if one.live else "returning" if one.coming else "lost" for one in status.replicas
    )
    alive = Counter(facts.nodes.get(rank, "?") for rank in facts.alive)
    nodes = sorted({*facts.nodes.values(), *alive})
    return [
        _by("replicas", "gauge", "Replicas.", "class",
            [(name, classes[name]) for name in ("live", "lost", "returning")]),
        _by("replica_live", "gauge", "1 if it takes part.", "replica",
            [(one.slot, one.live) for one in status.replicas]),
        _by("replica_quota", "gauge", "Its microbatches of a step.", "replica",
            [(one.slot, max(0, one.quota)) for one in status.replicas]),
        _by("workers_alive", "gauge", "Workers that live.", "node",
            [(node, alive[node]) for node in nodes]),
    ]  # fmt: skip


def _losses(facts: History, status: Status) -> list[Series]:
    causes = Counter(one.root.cause for one in losses_of(facts))
    parts: Counter[str] = Counter()
    found = figures.recoveries(facts)
    for one in found:
        parts.update(dict(one.parts_ms))
    return [
        _by("losses_total", "counter", "Replicas lost, by cause.", "class", sorted(causes.items())),
        _plain("survived_total", "counter", "Losses that the others survived.", status.survived),
        _plain("returned_total", "counter", "Replicas that came back.", status.returned),
        Series(
            name=f"{PREFIX}recovery_seconds",
            kind="histogram",
            help="From a loss to the step that is whole without it.",
            values=[((), one.total_ms / 1000) for one in found],
        ),
        _by("recovery_part_seconds_total", "counter", "What recoveries took.", "class",
            [(name, parts[name] / 1000) for name in PARTS]),
    ]  # fmt: skip


def _time(goodput: Goodput) -> list[Series]:
    """Gauges: what a step cost beyond the usual is judged anew as more of them are known."""
    ratios = [
        ("wall", goodput.ratio), ("allocated", goodput.of_allocated), ("alive", goodput.of_alive),
    ]  # fmt: skip
    return [
        _by("goodput_ratio", "gauge", "Useful time of all, or of that of replicas.", "class",
            ratios if goodput.wall_us else ()),
        _by("time_seconds", "gauge", "Where the time of the run went.", "class",
            [(bucket, goodput.seconds(bucket)) for bucket in goodput.buckets]),
    ]  # fmt: skip
