"""One journal read through all that shows it: the numbers are the same everywhere."""

import csv
import html
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

import recoverrun
from recoverrun.metrics.run_series import MeteredRun, Series
from recoverrun.metrics.run_spans import RunSpan, RunSpans
from recoverrun.reports import postmortem_screen, status_lines, status_screen
from recoverrun.reports.closing_line import closing_line
from recoverrun.reports.failure_report import failure_report
from recoverrun.reports.goodput import RECOVERY, ratios_line, rows
from recoverrun.reports.history import History, history
from recoverrun.reports.html_page import html_page
from recoverrun.reports.part_bars import return_bars
from recoverrun.reports.perfetto_trace import RECOVERIES, trace_lines
from recoverrun.reports.postmortem import Postmortem, judged, verdict
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.recorded_run import RecordedRun
from recoverrun.reports.run_list import Run, runs_below
from recoverrun.reports.status import Status, Watch
from recoverrun.reports.status import to_json as status_json
from recoverrun.reports.step_table import step_rows
from recoverrun.text import plural, span
from rendezvous.journal.reader import RunLog, read_run
from tests.unit import journals
from tests.unit.eventful_journal import AGAIN, STEPS, eventful
from tests.unit.run_status import status_of


def _text(page: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=132, color_system=None, highlight=False).print(page)
    return out.getvalue()


def _plain(page: str) -> str:
    """The text of a page, as a reader sees it."""
    body = page.partition("</head>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


RUNS = {**journals.RUNS, "eventful": eventful}


@dataclass
class Shown:
    """One journal, through all that reads it."""

    log: RunLog
    facts: History
    found: Postmortem
    status: Status
    api: RecordedRun
    metrics: dict[str, Series]
    listed: Run
    told: dict[str, Any]  # JSON of postmortem
    shown: dict[str, Any]  # JSON of status
    steps: list[dict[str, str]]  # CSV
    trace: list[dict[str, Any]]
    page: str
    web: str
    screen: str
    plain: str
    last: str  # of the console
    failed: str  # of the console, of a run that did
    span: RunSpan  # of a tracing system

    def metric(self, name: str, *labels: str) -> float:
        return dict(self.metrics[f"recoverrun_{name}"].values)[labels]

    def metric_sum(self, name: str) -> float:
        return sum(value for _, value in self.metrics[f"recoverrun_{name}"].values)


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Shown:
    run_dir = tmp_path / "runs" / request.param
    run_dir.mkdir(parents=True)
    log = read_run(RUNS[request.param](run_dir))
    facts = history(log)
    found, status = judged(facts, log), status_of(log, facts.latest)
    metered = MeteredRun(Watch(run_dir=str(run_dir)))
    for entry in log.entries:  # As they come, unlike for all others.
        metered.add([entry])
    spans = RunSpans(Watch(run_dir=str(run_dir)))
    list(spans.add(log.entries))
    (listed,) = runs_below(tmp_path / "runs", "elsewhere", lambda _: False)
    page = postmortem_screen.render(found, columns=132, everything=True)
    return Shown(
        log=log, facts=facts, found=found, status=status, listed=listed,
        api=recoverrun.read_run(run_dir),
        metrics={one.name: one for one in metered.series(facts.latest)},
        told=json.loads(json.dumps(to_json(found))),
        shown=json.loads(status_json(status)),
        steps=[*csv.DictReader("".join(step_rows(facts)).splitlines())],
        trace=json.loads("\n".join(trace_lines(found, facts)))["traceEvents"],
        page=" ".join(_text(page).split()),
        web=_plain(html_page(found, facts, ())),
        screen=" ".join(_text(status_screen.render(status)).split()),
        plain="\n".join(status_lines.plain_lines(status)),
        last=closing_line(log, run_dir),
        failed=failure_report(log, facts.exit_code or 0, run_dir),
        span=spans.whole(),
    )  # fmt: skip


def test_where_the_time_went_is_the_same_everywhere(run: Shown) -> None:
    """Check 8 of the user experience: the waterfall sums to the wall time, wherever it is shown."""
    goodput = run.found.goodput
    assert run.status.goodput == goodput == run.api.goodput
    assert run.shown["goodput"] == run.told["goodput"]
    ratio = run.told["goodput"]["ratio"]
    assert run.span.attributes["recoverrun.goodput_ratio"] == ratio == round(goodput.ratio, 6)
    assert sum(goodput.buckets.values()) == goodput.wall_us
    assert goodput.wall_us / 1e6 == pytest.approx(run.found.wall_s) == run.told["wall_s"]
    assert run.metric_sum("time_seconds") == pytest.approx(run.found.wall_s)
    for bucket in goodput.buckets:
        assert run.metric("time_seconds", bucket) == goodput.seconds(bucket)
    for of, ratio in (
        ("wall", goodput.ratio), ("allocated", goodput.of_allocated), ("alive", goodput.of_alive)
    ):  # fmt: skip
        assert run.metric("goodput_ratio", of) == ratio
    if not goodput.steps:
        return
    for row in rows(goodput):
        assert f"{row.name} {span(row.us / 1e6)} {row.share}" in run.page
        assert f"{row.name} {span(row.us / 1e6)} {row.share}" in run.web
    useful = rows(goodput)[0].share
    assert f"goodput {useful}" in run.screen and f"goodput {useful}" in run.plain
    assert f"useful: {ratios_line(goodput)}" in run.page
    assert f"useful: {ratios_line(goodput)}" in run.web
    assert "100.0 %" in run.page and "100.0 %" in run.web


def test_steps_are_the_same_everywhere(run: Shown) -> None:
    found, status, steps = run.found, run.status, len(run.facts.commits)
    assert status.steps == found.proof.steps == found.goodput.steps == len(run.api.steps) == steps
    assert len(run.steps) == run.metric("steps_total") == steps
    assert sum(one["name"].startswith("step ") for one in run.trace if one["ph"] == "X") == steps
    assert status.exact == found.proof.exact == steps - run.metric("inexact_steps")
    assert f"{found.proof.exact:,}/{steps:,} steps exact" in run.plain or not steps
    assert f"{found.proof.exact:,}/{steps:,} " in run.page or not steps

    assert status.steps_done == found.steps_done == run.told["steps_done"]
    assert found.steps_done == steps - found.steps_again
    assert status.steps_again == found.steps_again == found.goodput.again
    assert run.metric("steps_again_total") == run.told["steps_again"] == found.steps_again
    assert plural(found.steps_done, "step") in verdict(found) or found.outcome == "empty"
    assert not run.last or plural(found.steps_done, "step") in run.last
    assert f"steps {found.steps_done:,} " in run.web
    again = f"({plural(found.steps_again, 'step')} done again)"
    for said in (run.page, run.web, run.last) if found.steps_again else ():
        assert again in said

    newest = run.facts.commits[-1].step if steps else -1
    assert (
        status.last_step
        == found.last_step
        == run.listed.last_step
        == run.told["last_step"]
        == newest
    )
    assert run.metric("last_step") == newest
    assert (
        run.shown["median_step_ms"] == run.told["median_step_ms"] == found.goodput.usual_us / 1000
    )
    assert run.metric("median_step_seconds") == found.goodput.usual_us / 1e6
    if steps:
        assert f"usual {span(found.goodput.usual_us / 1e6)}" in run.screen
        assert float(run.steps[-1]["step_ms"]) == status.step_ms == run.api.steps[-1].ms
        assert run.metric("step_seconds") == status.step_ms / 1000
        assert int(run.steps[-1]["microbatches"]) == status.total == run.api.steps[-1].microbatches
        assert run.metric("step_microbatches") == status.microbatches
        if run.failed:
            assert f"last committed step {newest}, after " in run.failed
    of_rows = [int(row["microbatches"]) for row in run.steps]
    assert sum(of_rows) == run.told["total_microbatches"] == found.total
    assert of_rows == [one.microbatches for one in run.api.steps]
    assert run.span.attributes["recoverrun.steps_done"] == found.steps_done


def test_losses_and_their_cost_are_the_same_everywhere(run: Shown) -> None:
    found, status = run.found, run.status
    assert status.losses == len(found.losses) == len(run.api.losses) == len(run.told["losses"])
    assert run.metric_sum("losses_total") == len(found.losses)
    assert {cause: run.metric("losses_total", cause) for cause in run.told["causes"]} == (
        run.told["causes"]
    )
    recovered = sum(one.survived for one in run.api.losses)
    assert status.survived == found.survived == run.told["survived"] == recovered
    assert run.metric("survived_total") == recovered == sum(o.total_ms >= 0 for o in found.losses)
    if recovered:
        assert f"{plural(recovered, 'loss')} survived" in run.page
        assert f"losses {len(found.losses):,} {recovered:,} survived" in run.web
        assert f"{plural(recovered, 'loss')} survived" in run.last or not run.last
        assert f"{status.losses} lost, {recovered} survived" in run.plain

    back = sum(way.back > 0 for way in found.ways)
    assert status.returned == found.returned == len(run.api.returns) == run.told["returned"] == back
    assert run.metric("returned_total") == back
    assert status.restarts == run.metric("restarts_total") == max(0, found.attempts - 1)

    assert status.lost_s == found.lost_s == pytest.approx(run.told["lost_s"])
    away_s = sum(one.away_ms for one in found.steps_back) / 1000
    assert run.metric_sum("recovery_seconds") == pytest.approx(found.lost_s - away_s)
    assert len(run.metrics["recoverrun_recovery_seconds"].values) == len(found.recoveries_ms)
    booked_us = sum(found.goodput.buckets.get(part, 0) for part in (*RECOVERY, "stall"))
    assert booked_us / 1e6 == pytest.approx(found.lost_s - away_s)
    traced = [one["dur"] for one in run.trace if one["ph"] == "X" and one["pid"] == RECOVERIES]
    assert not found.recoveries_ms or max(traced) / 1000 == pytest.approx(max(found.recoveries_ms))
    whole = [one for one in run.trace if one["name"].startswith("recovery of ")]
    assert len(whole) == len(found.recoveries_ms)
    assert sum(one["args"]["redone"] for one in whole) == found.redone
    assert status.recovery_ms == (-1.0, *found.recoveries_ms)[-1]
    told = run.span.attributes
    assert told["recoverrun.losses"] == len(found.losses)
    assert told["recoverrun.survived"] == recovered
    assert told["recoverrun.lost_s"] == found.lost_s
    if recovered and run.failed:
        assert f"before that {plural(recovered, 'loss')} survived" in run.failed
    for way in found.ways:
        if way.back:  # The whole of the bar is the number in the table.
            assert f">{span(way.lost_for_s)}<" in return_bars([way])
            assert span(way.lost_for_s) in run.page and span(way.lost_for_s) in run.web
    if found.losses and found.lost_s:
        for said in (run.page, run.web, run.screen):
            assert span(found.lost_s) in said
        assert f"{span(found.lost_s)} lost" in run.last
    for loss, one in zip(found.losses, run.api.losses, strict=True):
        assert (loss.total_ms if loss.total_ms >= 0 else 0.0) == one.total_ms
        assert dict(loss.parts_ms) == one.parts_ms


def test_microbatches_that_moved_are_the_same_everywhere(run: Shown) -> None:
    found, status = run.found, run.status
    assert (status.redone_microbatches, status.taken_over_microbatches) == (
        found.redone,
        found.taken_over,
    )
    assert (
        run.told["redone_microbatches"] == found.redone == run.metric("redone_microbatches_total")
    )
    assert run.metric("moved_microbatches_total") == found.redone + found.taken_over
    told = [(step.redone, step.taken_over) for step in run.api.steps]
    assert told == [(int(row["redone"]), int(row["taken_over"])) for row in run.steps]
    assert sum(map(sum, told)) == found.redone + found.taken_over
    assert sum(loss.redone for loss in found.losses) == found.redone
    if found.losses and found.lost_s:
        words = f"{found.redone:,} redone, {found.taken_over:,} taken over"
        assert words in run.screen
        assert f"{plural(found.redone, 'microbatch')} redone" in run.web
        assert f"{plural(found.redone, 'microbatch')} redone, {found.taken_over:,} taken over" in (
            run.page
        )


def test_who_lives_and_how_it_ended_is_the_same_everywhere(run: Shown) -> None:
    found, status = run.found, run.status
    live = sum(one.live for one in status.replicas)
    assert run.metric("replicas", "live") == live == status.live
    ends = [lane.changes[-1][1] == "alive" for lane in found.lanes]
    assert ends == [one.live for one in status.replicas]
    root = found.root.what if found.root is not None else ""
    assert run.api.root_cause == root
    assert (status.exit_code, run.api.exit_code) == (found.exit_code, found.exit_code)
    assert status.cause == (root if found.exit_code else "")
    assert run.metric("run_ended") == (found.exit_code is not None)
    assert run.metric_sum("workers_alive") == status.alive == len(status.pids)
    assert status.world_size == found.world_size == run.told["world_size"]
    assert run.listed.nodes == len(found.nodes) + len(found.missing_nodes)
    if found.exit_code is not None:
        assert status.up_s == pytest.approx(found.wall_s)
        assert run.span.attributes["recoverrun.exit_code"] == found.exit_code
    assert run.metric("stragglers_total") == len(found.slow) == len(run.told["stragglers"])
    for slow in found.slow:
        assert slow.words in run.page and slow.words in run.web
    # A list of runs, by which they may be removed, waits for the end of every journal.
    assert run.listed.exit_code in (found.exit_code, None)


ALONE = {
    "schema", "now", "utc_offset_s", "silent_s", "idle_s",  # of the one who asks
    "generation", "of", "eta_s", "recovery_ms",  # of the instant: `status` alone
    "total", "microbatches", "step_microbatches",  # of the newest step
    "earlier_runs", "unreadable_places", "unreadable",  # of the files that were read
    "missing_from_step", "run_start_s", "last_record_s",
    "attempts", "total_microbatches", "moved_microbatches", "inexact_steps", "invariant_breaks",
    "hangs", "of_allocated", "of_alive", "run_ended",
}  # fmt: skip
"""Numbers that stand in one place, or are compared above under another name."""


def _named(told: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of an object under their names, those of metrics in the units of JSON."""
    found: dict[str, float] = {}
    for key, value in told.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        name = key.removeprefix(prefix).removesuffix("_total")
        stem = name.removesuffix("_seconds")
        found |= {name: value} if stem == name else {f"{stem}_s": value}
    return found


def test_one_name_is_one_number_wherever_it_stands(run: Shown) -> None:
    """Also for numbers that are added later: nothing is listed here but what stands alone."""
    plain = {name: one.values[0][1] for name, one in run.metrics.items()
             if not one.labels and one.kind != "histogram" and one.values}  # fmt: skip
    counted = {
        name: len(told) for name, told in run.told.items() if name in ("losses", "stragglers")
    }
    proof = run.told["invariant"]
    places = {
        "postmortem": _named({**run.told, **counted}),
        "goodput": _named(run.told["goodput"]),
        "proof": {"steps": proof["steps"], "exact": proof["exact"]},
        "status": _named(run.shown),
        "metrics": _named(plain, "recoverrun_"),
        "spans": _named(run.span.attributes, "recoverrun."),
        "read_run": _named({one.name: getattr(run.api, one.name) for one in fields(run.api)}),
    }
    measured, ratio = places["metrics"], places["goodput"].pop("ratio")
    for name in ("step", "median_step"):
        measured[f"{name}_ms"] = 1000 * measured.pop(f"{name}_s")
    measured["alive"] = run.metric_sum("workers_alive")
    measured["losses"] = run.metric_sum("losses_total")
    measured["goodput_ratio"] = run.metric("goodput_ratio", "wall")
    places["goodput"]["goodput_ratio"] = ratio
    said: dict[str, dict[str, float]] = {}
    for place, numbers in places.items():
        for name, value in numbers.items():
            said.setdefault(name, {})[place] = value

    code = said["exit_code"]
    if run.facts.exit_code is None:
        code.pop("spans", None)  # -1 there, as an attribute has to be a number
    for name, values in said.items():
        assert len({round(value, 6) for value in values.values()}) <= 1, f"{name}: {values}"
    alone = {name for name, values in said.items() if len(values) == 1}
    assert not alone - ALONE, f"shown once only, or under another name elsewhere: {alone - ALONE}"


def test_the_eventful_run_holds_all_that_it_should(tmp_path: Path) -> None:
    found = judged(history(log := read_run(eventful(tmp_path))), log)

    assert found.proof.verdict == "proved"
    assert {loss.cause.root.cause for loss in found.losses} == {"sigkill", "exception", "hang"}
    assert (found.survived, found.returned, found.attempts) == (3, 1, 3)
    assert (found.steps_done, found.steps_again) == (STEPS, AGAIN)
    assert {
        "again",
        "checkpoint",
        "data",
        "stall",
        "rejoin",
        "restart",
    } <= found.goodput.buckets.keys()
    assert [one.step for one in found.steps_back] == [20]
