"""A run becomes a trace: one span for each recovery, hang, return and restart, and for itself."""

from pathlib import Path

import pytest

from recoverrun.metrics.run_spans import RunSpan, RunSpans, trace_id
from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.status import Watch
from rendezvous.journal.reader import read_run
from tests.unit import journals
from tests.unit.eventful_journal import eventful


def spans(run_dir: Path) -> tuple[list[RunSpan], RunSpan]:
    book = RunSpans(Watch(run_dir=str(run_dir)))
    found = [span for entry in read_run(run_dir).entries for span in book.add([entry])]
    return found, book.whole()


def test_all_that_happens_is_a_span_that_ends_as_it_is_over(tmp_path: Path) -> None:
    found, whole = spans(eventful(tmp_path))
    log = read_run(tmp_path)
    known = postmortem(log)

    assert [span.name for span in found] == [
        "recovery in step 12", "return of replica 1", "hang of rank 1", "recovery in step 21",
        "restart of all ranks", "restart of all ranks",
    ]  # fmt: skip
    lasting = [1000 * (span.end - span.begin) for span in found if "recovery" in span.name]
    assert lasting == pytest.approx(known.recoveries_ms)
    assert all(whole.begin <= span.begin <= span.end <= whole.end for span in found)
    assert whole.end - whole.begin == known.wall_s
    assert whole.attributes["recoverrun.lost_s"] == known.lost_s
    assert whole.attributes["recoverrun.steps_done"] == known.steps_done
    assert not whole.failed
    assert [span.failed for span in found] == [False, False, True, False, True, True]


def test_names_are_the_same_whoever_makes_them_and_differ_within_a_run(tmp_path: Path) -> None:
    found, whole = spans(eventful(tmp_path))
    again, _ = spans(tmp_path)

    ids = [span.id("job") for span in (*found, whole)]
    assert ids == [span.id("job") for span in (*again, whole)]
    assert len(set(ids)) == len(ids)
    assert all(0 < one < 1 << 64 for one in ids)
    assert 0 < trace_id("job") < 1 << 128
    assert trace_id("job") != trace_id("other")


def test_a_run_that_failed_says_so(tmp_path: Path) -> None:
    _, whole = spans(journals.user_exception(tmp_path))

    assert whole.failed
    assert whole.attributes["recoverrun.exit_code"] == 1
