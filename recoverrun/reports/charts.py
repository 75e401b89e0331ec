"""The pictures of a run along its time: lives of replicas, quotas, step times."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from recoverrun.reports.commits import Commit
from recoverrun.reports.drawing import WIDTH, Drawing, polyline, tick, ticks, time_ticks
from recoverrun.reports.happenings import Death
from recoverrun.reports.postmortem import Lane, Postmortem
from recoverrun.reports.thinning import thinned
from recoverrun.text import span

LEFT, RIGHT, FOOT = 84.0, 12.0, 22.0
LANES = 64
QUOTA_POINTS = 4000  # of all replicas together
STEEP = 8.0
"""Where the longest step is so many times the usual one, step times have a logarithmic scale."""

WRITTEN_MS = 1000.0
"""Lines of steps may be written late, several at once."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Wall time from left to right; the same in all pictures along time."""

    began: float
    latest: float

    def x(self, ts: float) -> float:
        whole = max(self.latest - self.began, 1e-9)
        share = min(1.0, max(0.0, (ts - self.began) / whole))
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def draw(self, drawing: Drawing, foot: float, top: float = 0.0) -> None:
        """Vertical lines with the time since the start at their feet."""
        for seconds in time_ticks(self.latest - self.began, 8):
            x = self.x(self.began + seconds)
            drawing.line(x, top, x, foot, "grid")
            anchor = "end" if x > WIDTH - 40 else "middle"
            drawing.text(min(x, WIDTH), foot + 15, tick(seconds), anchor=anchor)


def lanes(found: Postmortem, hangs: Sequence[Death]) -> str:
    """A line for each replica: where it took part, was lost, hung and came back."""
    axis = Axis(found.began, found.latest)
    shown = found.lanes
    if len(shown) > LANES:
        troubled = [lane for lane in shown if len(lane.changes) > 1]
        rest = [lane for lane in shown if len(lane.changes) == 1]
        shown = tuple(sorted((troubled + rest)[:LANES], key=lambda lane: lane.slot))
    pitch = max(9.0, min(24.0, 420.0 / max(1, len(shown))))
    drawing = Drawing(pitch * len(shown) + FOOT + 6, "when each replica took part")
    axis.draw(drawing, pitch * len(shown) + 4)
    named = max(1, math.ceil(len(shown) * 12 / (pitch * len(shown)))) if shown else 1
    for row, lane in enumerate(shown):
        y = pitch * (row + 0.5) + 2
        if row % named == 0:
            drawing.text(LEFT - 8, y + 4, f"replica {lane.slot}", anchor="end")
        _lane(drawing, axis, lane, found, y=y, pitch=pitch)
        members = set(found.replicas[lane.slot]) if lane.slot < len(found.replicas) else set()
        for hang in hangs:
            if hang.rank in members:
                title = f"rank {hang.rank} hangs {hang.error}"
                drawing.dot(axis.x(hang.failed_at), y, pitch * 0.22, "hang", title)
    return drawing.markup()


def _lane(
    drawing: Drawing, axis: Axis, lane: Lane, found: Postmortem, *, y: float, pitch: float
) -> None:
    high = min(8.0, pitch * 0.45)
    ends = [ts for ts, _ in lane.changes[1:]] + [found.latest]
    for (ts, state), end in zip(lane.changes, ends, strict=True):
        a, b = axis.x(ts), axis.x(end)
        if state == "alive":
            title = f"replica {lane.slot} takes part"
            drawing.box(a, y - high / 2, max(b - a, 0.5), high, "alive", title=title)
        else:
            drawing.box(a, y - 0.75, max(b - a, 0.5), 1.5, "gone")
    for ts, state in lane.changes[1:]:
        size = pitch * 0.24
        since = f"{span(ts - found.began)} after the start"
        if state == "lost":
            drawing.cross(axis.x(ts), y, size, "lost", f"replica {lane.slot} lost {since}")
        elif state == "alive":
            title = f"replica {lane.slot} back {since}"
            drawing.dot(axis.x(ts), y, size, "back", title)


def quotas(found: Postmortem, commits: Sequence[Commit]) -> str:
    """Microbatches of each replica in each step, on top of each other: their sum stays the same."""
    axis, slots = Axis(found.began, found.latest), len(found.replicas)
    runs = _quota_runs(commits, max(40, QUOTA_POINTS // max(1, slots)))
    most = max((sum(quota.values()) for _, _, quota in runs), default=0)
    if not most:
        return ""
    high, top = 180.0, 6.0
    drawing = Drawing(high + top + FOOT, "microbatches of each replica")
    axis.draw(drawing, high + top)
    below = [0] * len(runs)
    for slot in range(slots):
        steps = []
        for place, (begin, end, quota) in enumerate(runs):
            count = max(0, quota.get(slot, 0))
            if count:
                low, up = below[place], below[place] + count
                a, b = f"{axis.x(begin):.1f}", f"{axis.x(end):.1f}"
                roof, foot = (f"{top + high * (1 - n / most):.1f}" for n in (up, low))
                steps.append(f"M{a} {roof}H{b}V{foot}H{a}Z")
            below[place] += count
        if steps:
            drawing.path("".join(steps), f"q q{slot % 6}", f"replica {slot}")
    for value in ticks(0, most, min(4, most)):
        y = top + high * (1 - value / most)
        drawing.text(LEFT - 8, y + 4, f"{value:.0f}", anchor="end")
    return drawing.markup()


def _quota_runs(
    commits: Sequence[Commit], most: int
) -> list[tuple[float, float, Mapping[int, int]]]:
    """Stretches of time with the same quotas, the shortest left out where they are too many."""
    runs: list[tuple[float, float, Mapping[int, int]]] = []
    before = 0.0
    for commit in commits:
        begin = max(before, commit.ts - max(0.0, commit.ms) / 1000) if before else commit.ts
        before = commit.ts
        if runs and runs[-1][2] == commit.quota:
            runs[-1] = (runs[-1][0], commit.ts, commit.quota)
        else:
            runs.append((begin, commit.ts, commit.quota))
    if len(runs) > most:
        runs = sorted(sorted(runs, key=lambda run: run[0] - run[1])[:most], key=lambda run: run[0])
    return runs


def step_times(found: Postmortem, commits: Sequence[Commit]) -> str:
    """A chart of step times: the least and the greatest of each moment."""
    timed = _timed(commits)
    if len(timed) < 2:
        return ""
    axis, usual = Axis(found.began, found.latest), found.goodput.usual_us / 1000
    values = [ms for _, ms in timed]
    steep = max(values) > STEEP * max(usual, 1e-3)
    low, high = (min(values), max(values)) if steep else (0.0, max(values) * 1.05)
    tall, top = 180.0, 6.0

    def y(ms: float) -> float:
        if steep:
            whole = math.log(high / low) or 1.0
            return top + tall * (1 - math.log(max(ms, low) / low) / whole)
        return top + tall * (1 - ms / high)

    drawing = Drawing(tall + top + FOOT, "step times")
    axis.draw(drawing, tall + top)
    for value in _powers(low, high) if steep else ticks(low, high, 4):
        drawing.line(LEFT, y(value), WIDTH - RIGHT, y(value), "grid")
        drawing.text(LEFT - 8, y(value) + 4, tick(value / 1000), anchor="end")
    for loss in found.losses:
        x = axis.x(loss.cause.loss.ts)
        drawing.line(x, top, x, top + tall, "mark-lost")
    for way in found.ways:
        if way.back:
            x = axis.x(way.back)
            drawing.line(x, top, x, top + tall, "mark-back")
    points = [(axis.x(ts), y(ms)) for ts, ms in thinned(timed)]
    drawing.path(polyline(points), "curve", f"usual {span(usual / 1000)}")
    if usual and low <= usual <= high:
        drawing.line(LEFT, y(usual), WIDTH - RIGHT, y(usual), "usual")
    return drawing.markup()


def _timed(commits: Sequence[Commit]) -> list[tuple[float, float]]:
    """(when, milliseconds) of each step but the first. A new process says of its first step how
    long it is there: that is not longer than the time since the step before it was written.
    """
    found = []
    for before, commit in pairwise(commits):
        since = 1000 * max(0.0, commit.ts - before.ts)
        if commit.ms > 0:
            found.append((commit.ts, commit.ms if commit.ms < since + WRITTEN_MS else since))
    return [(ts, ms) for ts, ms in found if ms > 0]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten between two values, and halves of a decade where they are few."""
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0, 3.0) if len(tens) < 5 else (1.0,)
    found = [factor * 10.0**ten for ten in tens for factor in factors]
    return [value for value in found if low <= value <= high]
