"""The account of a run's time: each microsecond from its first record to its last in one bucket.

Everything that shows goodput, in words, pictures or JSON, takes it from a `Goodput`. Its parts are
integers, so that they add up exactly; `unknown` is what no record explains, and is always named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from recoverrun.text import span
from rendezvous.protocol.records import Json

Bucket = Literal[
    "useful", "degraded", "again", "imbalance", "data", "checkpoint", "alone", "long", "startup",
    "warm-up", "stall", "detect", "agree", "rebuild", "redo", "reduce", "vote", "recovery",
    "rejoin", "restart", "ending", "underway", "unknown",
]  # fmt: skip

BUCKETS: Mapping[Bucket, str] = {
    "useful": "steps at the usual speed",
    "degraded": "longer steps while replicas are lost",
    "again": "steps that were done before a restart",
    "imbalance": "waiting for the slowest rank",
    "data": "waiting for data",
    "checkpoint": "checkpoints saved or loaded",
    "alone": "one rank alone: logs, evaluation",
    "long": "long steps, beyond the usual",
    "startup": "until the first step",
    "warm-up": "first steps, beyond the usual",
    "stall": "a rank stood still, others waited",
    "detect": "until a loss was seen",
    "agree": "until members agreed on it",
    "rebuild": "connections made anew",
    "redo": "lost microbatches computed again",
    "reduce": "gradients reduced again",
    "vote": "voted again",
    "recovery": "between these parts of a recovery",
    "rejoin": "held for returning replicas",
    "restart": "between attempts",
    "ending": "after the last step",
    "underway": "the step under way",
    "unknown": "no record explains it",
}
"""What each bucket holds, in the order in which they are shown."""

MOST = 3
"""Buckets that a line names."""

_PARTS: Mapping[Bucket, str] = {
    "detect": "detect", "agree": "agree", "rebuild": "rebuild", "redo": "redo",
    "reduce": "reduce", "vote": "vote", "recovery": "between",
}  # fmt: skip

RECOVERY = tuple(_PARTS)
"""Buckets that together are the time of recoveries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The time of one run. All times are microseconds."""

    wall_us: int
    buckets: Mapping[Bucket, int]  # `useful`, `unknown`, and those that are not empty, in order
    steps: int  # committed
    again: int  # of them, done before a restart
    usual_us: int  # the median step, without what losses cost; 0 without a step
    work_us: int  # useful time of all replicas together
    allocated_us: int  # time of all replicas that the job had at most
    alive_us: int  # of those that took part

    @property
    def ratio(self) -> float:
        """Useful time of all time."""
        return self.share("useful")

    @property
    def of_allocated(self) -> float:
        """Useful time of replicas, of the time of all that the job had."""
        return self.work_us / self.allocated_us if self.allocated_us else 0.0

    @property
    def of_alive(self) -> float:
        """Useful time of replicas, of the time of those that took part."""
        return min(1.0, self.work_us / self.alive_us) if self.alive_us else 0.0

    def share(self, bucket: Bucket) -> float:
        """Part of the wall time, from 0 to 1."""
        return self.buckets.get(bucket, 0) / self.wall_us if self.wall_us else 0.0

    def seconds(self, bucket: Bucket) -> float:
        return self.buckets.get(bucket, 0) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the waterfall; the parts of recoveries are one."""

    name: str
    us: int
    share: str  # in per cent; those of all rows add up to 100.0
    meaning: str


def rows(goodput: Goodput) -> tuple[Row, ...]:
    """The waterfall for people: useful time first, unknown last. () where there is no time."""
    if not goodput.wall_us:
        return ()
    spent: dict[str, int] = {}
    for bucket, us in goodput.buckets.items():
        name = "recovery" if bucket in RECOVERY else bucket
        spent[name] = spent.get(name, 0) + us
    shares = _in_tenths(list(spent.values()), goodput.wall_us)
    return tuple(
        Row(name=name, us=us, share=_percent(tenths, us), meaning=_meaning(goodput, name))
        for (name, us), tenths in zip(spent.items(), shares, strict=True)
    )


def goodput_line(goodput: Goodput) -> str:
    """The goodput in a few words: the useful share, and where most of the rest went; "" without any
    time.
    """
    useful, *rest = rows(goodput) or (None,)
    if useful is None:
        return ""
    most = sorted(rest, key=lambda row: -row.us)[:MOST]
    lost = [f"{row.name} {span(row.us / 1e6)}" for row in most if row.us]
    return f"{useful.share}" + (f"  lost: {' · '.join(lost)}" if lost else "")


def ratios_line(goodput: Goodput) -> str:
    """The three ratios in one line."""
    wall = next((row.share for row in rows(goodput)), "0.0 %")
    allocated, alive = (f"{100 * of:.1f} %" for of in (goodput.of_allocated, goodput.of_alive))
    return f"{wall} of time · {allocated} of all replicas' · {alive} of live replicas'"


def goodput_json(goodput: Goodput) -> dict[str, Json]:
    """Plain values; fields are only ever added. Times are seconds, ratios from 0 to 1."""
    shares: dict[str, Json] = {
        name: {"s": us / 1e6, "share": round(goodput.share(name), 6)}
        for name, us in goodput.buckets.items()
    }
    return {
        "wall_s": goodput.wall_us / 1e6,
        "ratio": round(goodput.ratio, 6),
        "of_allocated": round(goodput.of_allocated, 6),
        "of_alive": round(goodput.of_alive, 6),
        "median_step_ms": goodput.usual_us / 1000,
        "steps": goodput.steps,
        "steps_again": goodput.again,
        "buckets": shares,
    }


def _in_tenths(amounts: Sequence[int], whole: int) -> list[int]:
    """Parts of `whole` in tenths of a per cent that add up to 1000: the largest rests round up."""
    exact = [divmod(1000 * amount, whole) for amount in amounts]
    tenths = [floor for floor, _ in exact]
    order = sorted(range(len(exact)), key=lambda at: -exact[at][1])
    for at in order[: 1000 - sum(tenths)]:
        tenths[at] += 1
    return tenths


def _percent(tenths: int, us: int) -> str:
    return f"{tenths / 10:.1f} %" if tenths or not us else "<0.1 %"


def _meaning(goodput: Goodput, name: str) -> str:
    if name != "recovery":
        return next(words for bucket, words in BUCKETS.items() if bucket == name)
    parts = ((part, goodput.buckets.get(part, 0)) for part in RECOVERY)
    return ", ".join(f"{_PARTS[part]} {us / 1000:.0f}" for part, us in parts if us >= 500) + " ms"
