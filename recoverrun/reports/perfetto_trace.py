"""A run as a trace that ui.perfetto.dev and chrome://tracing show: Chrome's JSON."""

import json
from collections.abc import Iterator

from recoverrun.reports.history import History
from recoverrun.reports.postmortem import Postmortem
from recoverrun.text import sanitize
from rendezvous.protocol.records import Json

STEPS, RECOVERIES, REPLICAS = 1, 2, 3
"""Groups of tracks ("processes" of a trace)."""


def trace_lines(found: Postmortem, facts: History) -> Iterator[str]:
    """The lines of the file. Times are microseconds since the run began."""
    yield '{"displayTimeUnit":"ms","traceEvents":['
    events = _events(found, facts)
    yield _line(next(events))
    for event in events:
        yield f",{_line(event)}"
    about: dict[str, Json] = {"run": found.title, "began": found.began, "version": found.version}
    yield f'],"otherData":{json.dumps(about)}}}'


def _line(event: dict[str, Json]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _events(found: Postmortem, facts: History) -> Iterator[dict[str, Json]]:
    for group, name in ((STEPS, "steps"), (RECOVERIES, "recoveries"), (REPLICAS, "replicas")):
        yield _named("process_name", group, 0, name)
        yield {"ph": "M", "name": "process_sort_index", "pid": group, "tid": 0,
               "args": {"sort_index": group}}  # fmt: skip
    yield from _steps(facts)
    yield from _recoveries(found)
    yield from _replicas(found, facts)


def _steps(facts: History) -> Iterator[dict[str, Json]]:
    live, before = -1, facts.began
    for commit in facts.commits:
        # Steps do not overlap: a new process says of its first one how long it is there.
        begin = max(before, commit.ts - max(0.0, commit.ms) / 1000)
        begin, before = min(begin, commit.ts), commit.ts
        args: dict[str, Json] = {"generation": commit.generation, "redone": commit.redone,
                                 "microbatches": commit.total, "ms": commit.ms}  # fmt: skip
        yield _span(f"step {commit.step}", (STEPS, 1), facts.began, (begin, commit.ts), args)
        taking_part = sum(1 for count in commit.quota.values() if count > 0)
        if taking_part != live:
            live = taking_part
            yield {"ph": "C", "name": "live replicas", "pid": STEPS, "ts": _us(facts, commit.ts),
                   "args": {"live": live}}  # fmt: skip


def _recoveries(found: Postmortem) -> Iterator[dict[str, Json]]:
    seen: set[tuple[int, int]] = set()
    for loss in found.losses:
        recovery = loss.cause.recovery
        if recovery is None or (recovery.attempt, recovery.generation) in seen:
            continue
        seen.add((recovery.attempt, recovery.generation))
        begin = recovery.ts - recovery.total_ms / 1000
        name = f"recovery of step {recovery.step}"
        redone = max(0, recovery.redone)
        args: dict[str, Json] = {"cause": sanitize(loss.cause.root.what), "redone": redone}
        yield _span(name, (RECOVERIES, 1), found.began, (begin, recovery.ts), args)
        for part, ms in recovery.parts_ms:
            end = min(recovery.ts, begin + ms / 1000)
            if ms > 0:
                yield _span(part, (RECOVERIES, 1), found.began, (begin, end), {"ms": ms})
            begin = end


def _replicas(found: Postmortem, facts: History) -> Iterator[dict[str, Json]]:
    for lane in found.lanes:
        yield _named("thread_name", REPLICAS, lane.slot + 1, f"replica {lane.slot}")
        ends = [ts for ts, _ in lane.changes[1:]] + [found.latest]
        for (ts, state), end in zip(lane.changes, ends, strict=True):
            said = "takes part" if state == "alive" else "lost"
            yield _span(said, (REPLICAS, lane.slot + 1), found.began, (ts, end), {})
    for death in facts.deaths:
        slot = facts.slot_of(death.rank)
        yield {"ph": "i", "s": "t", "name": sanitize(death.reason or death.kind, 200),
               "pid": REPLICAS, "tid": slot + 1, "ts": _us(facts, death.failed_at)}  # fmt: skip


def _span(
    name: str,
    track: tuple[int, int],
    began: float,
    times: tuple[float, float],
    args: dict[str, Json],
) -> dict[str, Json]:
    event: dict[str, Json] = {"ph": "X", "name": name, "pid": track[0], "tid": track[1]}
    begin, end = times
    event["ts"] = round(1e6 * max(0.0, begin - began))
    event["dur"] = round(1e6 * max(0.0, end - max(begin, began)))
    return {**event, "args": args} if args else event


def _named(kind: str, group: int, track: int, name: str) -> dict[str, Json]:
    return {"ph": "M", "name": kind, "pid": group, "tid": track, "args": {"name": name}}


def _us(facts: History, ts: float) -> int:
    return round(1e6 * max(0.0, ts - facts.began))
