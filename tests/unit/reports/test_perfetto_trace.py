"""The trace is JSON of the form that viewers know, and its spans do not overlap."""

import json
from pathlib import Path

import pytest

from recoverrun.reports.history import history
from recoverrun.reports.perfetto_trace import RECOVERIES, REPLICAS, STEPS, trace_lines
from recoverrun.reports.postmortem import judged
from rendezvous.journal.reader import read_run
from tests.unit import journals


@pytest.mark.parametrize("name", journals.RUNS)
def test_spans_of_a_track_lie_beside_or_in_each_other(tmp_path: Path, name: str) -> None:
    facts = history(log := read_run(journals.RUNS[name](tmp_path)))

    trace = json.loads("\n".join(trace_lines(judged(facts, log), facts)))

    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace["traceEvents"]:
        assert event["ph"] in "MXCi"
        if event["ph"] == "X":
            assert event["ts"] >= 0 <= event["dur"]
            span = event["ts"], event["ts"] + event["dur"]
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in tracks.values():
        for (_, end), (begin, later) in zip(spans, spans[1:], strict=False):
            assert begin >= end - 1 or later <= end + 1
    steps = [one for one in trace["traceEvents"] if one["ph"] == "X" and one["pid"] == STEPS]
    assert len(steps) == len(facts.commits)


def test_a_loss_has_its_recovery_and_its_mark(tmp_path: Path) -> None:
    facts = history(log := read_run(journals.one_loss(tmp_path)))

    events = json.loads("\n".join(trace_lines(judged(facts, log), facts)))["traceEvents"]

    parts = [one["name"] for one in events if one["pid"] == RECOVERIES and one["ph"] == "X"]
    assert parts == [
        "recovery of step 12", "detect", "agree", "rebuild", "redo", "reduce", "vote"
    ]  # fmt: skip
    lives = [
        one["name"] for one in events
        if (one["pid"], one["ph"], one.get("tid")) == (REPLICAS, "X", 2)
    ]  # fmt: skip
    assert lives == ["takes part", "lost"]
