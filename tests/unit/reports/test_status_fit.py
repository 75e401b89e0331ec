"""The status screen fits any terminal, and its header stays in sight."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from recoverrun.reports.status import Status, Watch
from recoverrun.reports.status_fit import fitted
from recoverrun.text import ASCII, UNICODE
from rendezvous.journal.reader import Entry, read_run
from tests.unit import journals
from tests.unit.run_status import status_of


def _drawn(status: Status, columns: int, height: int, *, live: bool) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=columns, height=height, color_system=None, force_terminal=False
    )
    console.print(fitted(status, UNICODE, console, height=height, live=live))
    return out.getvalue().splitlines()


def _fleet(replicas: int, dead: int) -> Status:
    """Replicas of eight ranks, of which some are lost, and a long list of events."""
    watch = Watch(run_dir="runs/fleet")
    layout = [list(range(s * 8, s * 8 + 8)) for s in range(replicas)]
    live = list(range(dead, replicas))
    records: list[tuple[str, dict[str, object]]] = [
        ("run.start", {"argv": ["train.py"], "run_id": "none", "world_size": 8 * replicas}),
        ("topology.learn", {"strategy": "fsdp2", "replicas": layout}),
        ("promise.state", {"promise": "exact-samples", "microbatches": 16}),
        *(
            ("replica.lost", {"slot": s, "root_rank": 8 * s, "ranks": layout[s], "generation": 2})
            for s in range(dead)
        ),
        ("view.change", {"generation": 2, "live": live, "lost_ranks": []}),
    ]
    watch.add(
        Entry(
            ts=1.0 + seq, mono=0.0, seq=seq, node="n", event=event, reason="why it is so " * 9,
            fields=fields,  # type: ignore[arg-type]
        )
        for seq, (event, fields) in enumerate(records)
    )  # fmt: skip
    return watch.status(60.0)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("columns", "height"), [(80, 24), (120, 40), (80, 12), (60, 5), (40, 1)])
@pytest.mark.parametrize(("replicas", "dead"), [(2, 0), (64, 1), (64, 40)])
def test_no_screen_is_taller_than_its_terminal(
    replicas: int, dead: int, columns: int, height: int, live: bool
) -> None:
    lines = _drawn(_fleet(replicas, dead), columns, height, live=live)

    assert 0 < len(lines) <= height
    assert "recoverrun status · train.py" in lines[0]


@pytest.mark.parametrize("name", sorted(journals.RUNS))
def test_what_a_person_needs_stays_at_80_by_24(tmp_path: Path, name: str) -> None:
    log = read_run(journals.RUNS[name](tmp_path))
    status = status_of(log, journals.WALL + 60)

    lines = _drawn(status, 80, 24, live=True)

    assert any(status.phase in line for line in lines)
    assert all(any(f"│ {replica.slot} " in line for line in lines) for replica in status.replicas)
    assert any("events" in line for line in lines)
    assert "q  leave" in lines[-1]


def test_all_of_a_large_job_that_does_not_fit_is_counted() -> None:
    lines = _drawn(_fleet(64, 40), 100, 24, live=False)

    text = "\n".join(lines)
    assert "lost or in trouble" in text and "replicas in order" in text


def test_where_there_is_room_nothing_is_left_out(tmp_path: Path) -> None:
    status = status_of(read_run(journals.live(tmp_path)), journals.WALL + 60)

    tall, taller = (_drawn(status, 80, height, live=False) for height in (60, 200))

    assert tall == taller


def test_the_ascii_screen_fits_too(tmp_path: Path) -> None:
    status = status_of(read_run(journals.live(tmp_path)), journals.WALL + 60)
    out = io.StringIO()
    console = Console(file=out, width=80, height=18, color_system=None)

    console.print(fitted(status, ASCII, console, height=18))

    assert len(out.getvalue().splitlines()) <= 18


def test_a_narrow_screen_shows_the_newest_step_times(tmp_path: Path) -> None:
    status = status_of(read_run(journals.live(tmp_path)), journals.WALL + 60)
    slow = replace(status, of=100_000, eta_s=1e5, recent_ms=(*[400.0] * 23, 9000.0))

    wide, narrow = (
        next(line for line in _drawn(slow, columns, 24, live=True) if "│ step " in line)
        for columns in (120, 80)
    )

    assert wide.rstrip(" │").endswith("▁█") and narrow.rstrip(" │").endswith("▁█")
