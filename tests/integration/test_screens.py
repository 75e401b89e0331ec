"""The screens that people see, kept as files: RECOVERRUN_REWRITE=1 writes them anew, then read the
diff.
"""

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from recoverrun.reports import postmortem_screen, status_lines, status_screen
from recoverrun.reports.plot import plot
from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.status import Status, Watch
from recoverrun.text import (
    ASCII,
    UNICODE,
    Glyphs,
    ascii_only,
    clock,
    plural,
    ranges,
    sanitize,
    span,
)
from rendezvous.journal.reader import Entry, RunTail, read_run
from tests.unit import journals
from tests.unit.run_status import status_of

GOLDENS = Path(__file__).parent / "goldens"


def _print(page: RenderableType, columns: int) -> str:
    out = io.StringIO()
    Console(file=out, width=columns, color_system=None, highlight=False).print(page)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _golden(name: str, text: str) -> None:
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("RECOVERRUN_REWRITE"):
        path.write_text(text)
    assert text == path.read_text()


def _status(run_dir: Path, name: str, after_s: float = 0.4) -> Status:
    run_dir = run_dir / name
    run_dir.mkdir()
    log = read_run(journals.RUNS[name](run_dir))
    watch = Watch(run_dir=f"runs/{name}", unreadable=log.unreadable_places)
    watch.add(log.entries)
    return watch.status(log.entries[-1].ts + after_s)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ["clean", "live", "two_at_once", "node_lost", "user_exception"])
def test_the_status_screen(tmp_path: Path, name: str, columns: int) -> None:
    page = status_screen.render(_status(tmp_path, name), live=True)

    text = _print(page, columns)

    assert max(len(line) for line in text.splitlines()) <= columns
    _golden(f"status_{name}_{columns}", text)


def test_the_status_screen_of_a_launcher_that_went_silent(tmp_path: Path) -> None:
    status = _status(tmp_path, "launcher_killed", after_s=90.0)

    _golden("status_silent_80", _print(status_screen.render(status), 80))


def test_the_status_screen_in_ascii(tmp_path: Path) -> None:
    text = _print(status_screen.render(_status(tmp_path, "live"), ASCII), 80)

    assert text.isascii()
    _golden("status_live_ascii", text)


def test_the_status_without_a_terminal(tmp_path: Path) -> None:
    lines = status_lines.plain_lines(_status(tmp_path, "live"))

    _golden("status_live_plain", "\n".join(lines) + "\n")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "name",
    ["clean", "one_loss", "loss_during_recovery", "node_lost", "user_exception", "cut_line"],
)
def test_the_postmortem_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, columns: int
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = Path("runs", name)
    run_dir.mkdir(parents=True)
    found = postmortem(read_run(journals.RUNS[name](run_dir)))

    text = _print(postmortem_screen.render(found, columns=columns), columns)

    assert max(len(line) for line in text.splitlines()) <= columns
    _golden(f"postmortem_{name}_{columns}", text)


def test_the_proof_in_ascii(tmp_path: Path) -> None:
    found = postmortem(read_run(journals.launcher_killed(tmp_path)))

    text = _print(postmortem_screen.render_proof(found.proof, ASCII), 80)

    assert text.isascii()
    _golden("proof_launcher_killed_ascii", text)


def test_a_run_that_has_not_begun_has_a_screen(tmp_path: Path) -> None:
    status = status_of(read_run(tmp_path), 5.0)

    assert "waiting" in _print(status_screen.render(status), 80)
    assert status_lines.plain_lines(status)
    assert _print(postmortem_screen.render(postmortem(read_run(tmp_path))), 80)


def test_following_in_pieces_shows_the_same_as_reading_at_once(tmp_path: Path) -> None:
    journals.loss_during_recovery(tmp_path)
    log = read_run(tmp_path)
    watch = Watch(run_dir=str(tmp_path))
    for entry in RunTail(tmp_path).poll():
        watch.add([entry])

    assert watch.status(journals.WALL + 60) == status_of(log, journals.WALL + 60)


def _fleet(replicas: int, shards: int) -> Watch:
    """A run of 512 ranks with one dead replica."""
    watch = Watch(run_dir="runs/fleet")
    layout = [list(range(s * shards, (s + 1) * shards)) for s in range(replicas)]

    def entry(seq: int, event: str, **fields: object) -> Entry:
        return Entry(ts=1.0 + seq, mono=0.0, seq=seq, node="n", event=event, reason="why",
                     fields=fields)  # type: ignore[arg-type]  # fmt: skip

    entries = [
        entry(0, "topology.learn", strategy="fsdp2", replicas=layout),
        entry(1, "promise.state", promise="exact-samples", microbatches=16),
        entry(2, "replica.lost", slot=5, root_rank=41, ranks=layout[5], generation=2),
        entry(3, "view.change", generation=2, live=[s for s in range(replicas) if s != 5],
              lost_ranks=layout[5]),
    ]  # fmt: skip
    entries += [
        entry(4 + rank, "worker.spawn", rank=rank, pid=rank, incarnation=0)
        for rank in range(replicas * shards)
    ]
    watch.add(entries)
    return watch


FRAME_S = 0.06
"""Processor time that a frame may take."""


def test_a_fleet_of_512_ranks_folds_and_draws_quickly() -> None:
    """Check 10 of the user experience: below 60 ms of processor time, 80 columns, and a pipe."""
    watch = _fleet(64, 8)
    spent = []
    for _ in range(20):  # the least of them is what a frame takes: others may have the caches
        began = time.process_time()
        text = _print(status_screen.render(watch.status(600.0)), 80)
        spent.append(time.process_time() - began)

    assert min(spent) < FRAME_S
    assert len(text.splitlines()) < 40 and max(map(len, text.splitlines())) <= 80
    assert "lost: rank 41" in text and "replicas in order" in text
    _golden("status_fleet_80", text)
    _golden("status_fleet_plain", "\n".join(status_lines.plain_lines(watch.status(600.0))) + "\n")


@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred", "\x1b]0;title\x07x", "a\u202eb", "a\x9b2Jb", "\ud800", "a\u200bb", "a\rb\nc"],
)
def test_what_reaches_a_terminal_cannot_command_it(text: str) -> None:
    clean = sanitize(text)

    assert clean.isprintable()
    assert "\x1b" not in clean
    assert len(clean) <= len(text)


def test_a_text_without_end_is_cut() -> None:
    assert len(sanitize("x" * 10_000_000, 80)) == 80


def test_journal_text_is_never_taken_for_markup(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.exit(1, code=1, error="ValueError: [bold red]x[/] [link=http://a]")
    story.end(1, 1)

    found = postmortem(read_run(story.close()))
    assert "[bold red]x[/]" in _print(postmortem_screen.render(found), 120)


def test_words_for_spans_counts_and_ranks() -> None:
    assert [span(s) for s in (0.0, 0.0412, 1.62, 59.99, 125, 22740, 200000)] == [
        "0 ms", "41 ms", "1.6 s", "1m 00s", "2m 05s", "6h 19m", "2d 07h",
    ]  # fmt: skip
    assert clock(3723) == "1:02:03"
    assert (plural(1, "loss"), plural(2, "microbatch")) == ("1 loss", "2 microbatches")
    assert ranges([5, 1, 2, 3, 9, 10]) == "1-3, 5, 9, 10"
    assert ascii_only("✓ 3 × 2 → ü").isascii()


@pytest.mark.parametrize("signs", [ASCII, UNICODE])
def test_two_curves_share_one_picture(signs: Glyphs) -> None:
    falling = [(float(x), 10.0 - x) for x in range(10)]
    other = [(float(x), 10.0 - x + (2 if x > 6 else 0)) for x in range(10)]

    picture = plot([falling, other], columns=40, rows=6, ascii_only=signs is ASCII)

    text = "\n".join(picture.lines(ascii_only=signs is ASCII))
    assert text.isascii() is (signs is ASCII)
    owners = {cell.owners for row in picture.rows for cell in row}
    assert {frozenset({0, 1}), frozenset({0}), frozenset({1})} <= owners
    assert (picture.low, picture.high) == (1.0, 10.0)


def test_a_plot_of_nothing_or_of_one_value_is_still_a_plot() -> None:
    assert plot([], columns=10, rows=3).lines()
    assert plot([[(1.0, float("nan"))]], columns=10, rows=3).lines()
    flat = plot([[(0.0, 2.0), (1.0, 2.0)]], columns=10, rows=3)
    assert any(cell.owners for cell in flat.rows[1])
