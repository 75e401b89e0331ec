"""One journal read through all that shows it: the numbers are the same everywhere."""

import csv
import html
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

import recoverrun
from recoverrun.reports import postmortem_screen, status_lines, status_screen
from recoverrun.reports.goodput import rows
from recoverrun.reports.history import history
from recoverrun.reports.html_page import html_page
from recoverrun.reports.perfetto_trace import trace_lines
from recoverrun.reports.postmortem import judged
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.run_list import runs_below
from recoverrun.reports.status import status_of
from recoverrun.reports.status import to_json as status_json
from recoverrun.reports.step_table import step_rows
from recoverrun.reports.survival import survival
from recoverrun.text import span
from rendezvous.journal.reader import read_run
from tests.unit import journals


def _text(page: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=132, color_system=None, highlight=False).print(page)
    return out.getvalue()


def _plain(page: str) -> str:
    """The text of a page, as a reader sees it."""
    body = page.partition("</head>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.mark.parametrize("name", journals.RUNS)
def test_a_number_is_the_same_wherever_it_is_shown(tmp_path: Path, name: str) -> None:
    run_dir = tmp_path / "runs" / name
    run_dir.mkdir(parents=True)
    log = read_run(journals.RUNS[name](run_dir))
    facts = history(log)
    found = judged(facts, log)
    status = status_of(log, facts.latest)
    told = to_json(found)
    shown = json.loads(status_json(status))
    api = recoverrun.read_run(run_dir)
    page = _text(postmortem_screen.render(found, columns=132, everything=True))
    screen = _text(status_screen.render(status))
    plain = "\n".join(status_lines.plain_lines(status))
    web = _plain(html_page(found, facts, ()))

    # The whole waterfall, to the microsecond.
    assert status.goodput == found.goodput == api.goodput
    assert shown["goodput"] == told["goodput"]
    for row in rows(found.goodput) if found.goodput.steps else ():
        assert re.search(rf"{row.name} +{re.escape(span(row.us / 1e6))} +{row.share}", page)
        assert f"{row.name} {span(row.us / 1e6)} {row.share}" in web
    if found.goodput.steps:
        useful = rows(found.goodput)[0].share
        assert f"goodput {useful}" in " ".join(screen.split())
        assert f"goodput {useful}" in plain
        assert "100.0 %" in page and "100.0 %" in web

    # Steps.
    steps = len(facts.commits)
    assert status.steps == found.proof.steps == found.goodput.steps == len(api.steps) == steps
    assert shown["median_ms"] == told["median_step_ms"] == found.goodput.usual_us / 1000
    assert len([*csv.DictReader("".join(step_rows(facts)).splitlines())]) == steps
    trace = json.loads("\n".join(trace_lines(found, facts)))["traceEvents"]
    assert sum(one["name"].startswith("step ") for one in trace if one["ph"] == "X") == steps
    (listed,) = runs_below(tmp_path / "runs", "elsewhere", lambda _: False)
    assert listed.steps == found.last_step + 1

    # Losses, and what they cost.
    assert status.losses == len(found.losses) == len(api.losses)
    assert status.lost_s == found.lost_s == told["lost_s"]
    assert (status.redone, status.taken_over) == (found.redone, found.taken_over)
    moved = [(step.redone, step.taken_over) for step in api.steps]
    assert sum(map(sum, moved)) == found.redone + found.taken_over
    if found.losses and found.lost_s:
        assert span(found.lost_s) in page and span(found.lost_s) in web
        last = survival(log, run_dir)
        assert f"{span(found.lost_s)} lost" in last
    for loss, one in zip(found.losses, api.losses, strict=True):
        assert (loss.total_ms if loss.total_ms >= 0 else 0.0) == one.total_ms
        assert dict(loss.parts_ms) == one.parts_ms

    # The verdict.
    root = found.root.what if found.root is not None else ""
    assert api.root_cause == root
    assert (status.exit_code, api.exit_code) == (found.exit_code, found.exit_code)
    assert status.cause == (root if found.exit_code else "")
