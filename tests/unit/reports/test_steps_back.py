"""Reports of a job whose ranks went back to a snapshot."""

import io
from pathlib import Path

from rich.console import Console

from recoverrun.reports.closing_line import closing_line
from recoverrun.reports.postmortem import postmortem, verdict
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.postmortem_screen import render
from recoverrun.reports.status_lines import plain_lines
from recoverrun.reports.steps_back import StepsBack
from rendezvous.journal.reader import Entry, RunLog, read_run
from rendezvous.protocol.records import Json
from tests.unit import journals
from tests.unit.run_status import status_of


def _went_back(run_dir: Path) -> RunLog:
    """Killed at step 27, seven steps after the newest snapshot; then it ends well."""
    story = journals.Story(run_dir)
    story.start()
    story.wait(10.0)
    story.write("snapshot.whole", "", attempt=0, step=20, bytes=100)
    story.write("snapshot.safe", "the snapshot of step 20 is safe", attempt=0, step=20)
    story.wait(3.0)
    story.write("job.restart", "rank 0 was killed", attempt=1, restarts=0, root_rank=0)
    words = "all ranks go back to the top of step 20"
    story.write("snapshot.plan", words, attempt=1, of=0, step=20, back=7)
    story.wait(6.0)
    times = {"away_ms": 6400.0, "end_ms": 300.0, "state_ms": 1900.0, "rebuilt": 0}
    story.write("snapshot.restored", "", attempt=1, of=0, step=20, **times)
    story.wait(5.0)
    story.end()
    return read_run(story.close())


def test_a_postmortem_counts_steps_that_were_done_again(tmp_path: Path) -> None:
    found = postmortem(_went_back(tmp_path))
    page = io.StringIO()
    Console(file=page, width=100, force_terminal=False).print(render(found))

    assert "all ranks went back 1 time" in verdict(found)
    line = "back to step 20: 7 steps done again, away 6.4 s, of that 1.9 s state"
    assert f"{line}; why: rank 0 was killed" in " ".join(page.getvalue().split())
    assert to_json(found)["steps_back"] == [
        {
            "ts": found.steps_back[0].ts, "attempt": 1, "step": 20, "again": 7,
            "away_ms": 6400.0, "state_ms": 1900.0, "rebuilt": 0, "why": "rank 0 was killed",
        }
    ]  # fmt: skip


def test_status_says_what_a_loss_would_go_back_to(tmp_path: Path) -> None:
    log = _went_back(tmp_path)
    lines = plain_lines(status_of(log, journals.WALL + log.entries[-1].mono))

    (line,) = (one for one in lines if one.startswith("snapshots: "))
    assert line.startswith("snapshots: step 20 safe, ")
    assert line.endswith(" ago, 1 time back")
    assert any("back to step 20: 7 steps done again" in one for one in lines)


def test_the_last_line_says_what_it_cost(tmp_path: Path) -> None:
    line = closing_line(_went_back(tmp_path), Path("runs/train/1"))

    assert line.startswith("✓ all ranks went back 1 time · 6.4 s lost · ")


def test_a_run_without_snapshots_says_nothing_of_them(tmp_path: Path) -> None:
    log = read_run(journals.clean(tmp_path))

    assert "snapshots" not in "".join(plain_lines(status_of(log, journals.WALL + 60)))
    assert not postmortem(log).steps_back


def test_how_many_nodes_may_be_lost_is_said_where_they_make_parity() -> None:
    told = StepsBack()
    told.add(_entry("snapshot.safe", step=20, parity=1))
    assert told.newest_line(0.0).endswith("ago, 1 node of each group may be lost")
    told.add(_entry("snapshot.plan", step=20, attempt=1))
    assert "no node of each group may be lost (degraded)" in told.newest_line(0.0)
    told.add(_entry("snapshot.parity", step=20))

    assert "1 node of each group may be lost, 1 time back" in told.newest_line(0.0)


def test_ranks_that_others_have_rebuilt_are_counted() -> None:
    told = StepsBack()
    told.add(_entry("snapshot.plan", step=20, attempt=1))
    told.add(_entry("snapshot.restored", step=20, attempt=1, rebuilt=[3, 4]))

    assert "2 ranks rebuilt by other nodes" in str(told.found[0])


def _entry(event: str, **fields: Json) -> Entry:
    return Entry(ts=0, mono=0, seq=0, node="", event=event, reason="", fields=fields)
