"""The words of the status of a run, beyond how it looks (see the goldens of `test_screens`)."""

from pathlib import Path

import pytest

from recoverrun.reports.status import Status, Watch
from recoverrun.reports.status_lines import plain_lines
from recoverrun.text import span
from rendezvous.journal.reader import read_run
from tests.unit import journals
from tests.unit.run_status import status_of


def test_what_a_launcher_notes_is_said_by_no_rank(tmp_path: Path) -> None:
    story = journals.two_steps(tmp_path)
    story.write("notice.give", "the witness answers again", rank=-1)
    story.write("notice.give", "the data cannot be replayed", rank=3)
    story.close()

    texts = [one.text for one in status_of(read_run(tmp_path), journals.WALL).happenings[-2:]]

    assert texts == ["the witness answers again", "rank 3: the data cannot be replayed"]


def test_the_pids_of_workers_that_live_are_told(tmp_path: Path) -> None:
    journals.live(tmp_path)

    lines = plain_lines(status_of(read_run(tmp_path), journals.WALL))

    assert "replica 0: gpu-01, 2/2 shards up, pids 4100, 4101, quota 6" in lines
    assert "replica 1: gpu-01, 0/2 shards up, lost: rank 3 SIGKILL" in lines


def test_before_replicas_are_known_workers_have_pids_too(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    for rank in range(4):
        story.write("worker.spawn", "", rank=rank, pid=77 + rank, incarnation=0)
    story.close()

    lines = plain_lines(status_of(read_run(tmp_path), journals.WALL))

    assert "workers: ranks 0-3, pids 77-80" in lines


def _of(tmp_path: Path, steps: int) -> Status:
    watch = Watch(run_dir="r", steps=steps)
    watch.add(read_run(journals.live(tmp_path)).entries)
    return watch.status(journals.WALL + 30)


def test_the_time_left_is_told_where_somebody_says_how_many_steps_there_will_be(
    tmp_path: Path,
) -> None:
    status = _of(tmp_path, 1000)

    middle = sum(status.recent_ms) / len(status.recent_ms) / 1000
    assert status.eta_s == pytest.approx(979 * middle)
    assert f"step 20 of 1000 (2.1 %, {span(status.eta_s)} left)" in plain_lines(status)[0]


def test_without_that_nothing_is_guessed(tmp_path: Path) -> None:
    status = _of(tmp_path, 0)

    assert (status.of, status.eta_s) == (0, -1.0)
    assert "left" not in plain_lines(status)[0]


def test_a_run_that_goes_beyond_what_was_said_is_complete(tmp_path: Path) -> None:
    assert "step 20 of 10 (100.0 %)" in plain_lines(_of(tmp_path, 10))[0]


def test_silence_before_the_first_step_is_not_called_a_hang(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.write("run.start", "a run", run_id="r", argv=["t.py"], world_size=2, nnodes=1,
                version="1", inject="")  # fmt: skip
    story.close()
    log = read_run(tmp_path)
    newest = max(entry.ts for entry in log.entries)

    (said,) = [one for one in plain_lines(status_of(log, newest + 60)) if "silence" in one]

    assert said == (
        "silence: no record for 1m 00s: "
        "its script has not come to a step yet, or its launcher is gone"
    )


@pytest.mark.parametrize(("code", "of"), [(0, 3), (1, 100)])
def test_a_script_that_ended_well_before_its_loop_had_no_more_steps_to_do(
    tmp_path: Path, code: int, of: int
) -> None:
    story = journals.two_steps(tmp_path)
    planned = {"promise": "exact-samples", "microbatches": 4, "script_step": 0, "script_steps": 100}
    story.write("promise.state", "", **planned)
    assert status_of(read_run(tmp_path), journals.WALL).of == 100

    story.end(code)
    story.close()

    assert status_of(read_run(tmp_path), journals.WALL).of == of


def test_events_name_signals_as_the_console_does(tmp_path: Path) -> None:
    story = journals.two_steps(tmp_path)
    story.lose(1, 3, "rank 3 was ended by signal 9")
    story.close()

    texts = [one.text for one in status_of(read_run(tmp_path), journals.WALL).happenings]

    assert "replica 1 lost: rank 3 was killed by SIGKILL" in texts


def test_a_loss_that_another_coordinator_inherits_is_one_event(tmp_path: Path) -> None:
    log = read_run(journals.succession(tmp_path))

    status = status_of(log, journals.WALL)

    lost = [one.text for one in status.happenings if one.text.startswith("replica ")]
    assert lost == [
        "replica 1 lost: node gpu-02: its launcher has ended",
        "replica 0 lost: node gpu-01 is lost: its launcher has ended",
    ]
    assert (status.losses, status.survived) == (2, 2)


def test_an_end_that_all_nodes_record_is_told_once(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start(nodes=3)
    for node in ("gpu-01", "gpu-02", "gpu-03"):
        story.write("run.end", "all 3 live ranks ended normally", node, exit_code=0, root_rank=-1)
    story.close()

    texts = [one.text for one in status_of(read_run(tmp_path), journals.WALL).happenings]

    ended = [text for text in texts if text.startswith("ended")]
    assert ended == ["ended with code 0: all 3 live ranks ended normally"]


def test_a_run_without_a_step_for_long_says_so_whatever_else_is_recorded(tmp_path: Path) -> None:
    """A hang between steps: records still come, so the journal is not silent."""
    story = journals.two_steps(tmp_path)
    story.now += 40.0
    story.write("hang.quiet", "no rank has moved for 39.0 s", hang=1, step=3, quiet_s=39.0)
    story.close()
    log = read_run(tmp_path)
    newest = max(one.ts for one in log.of("step.commit"))

    soon, late = (status_of(log, newest + after) for after in (2.0, 42.0))

    assert (soon.idle_s, soon.silent_s) == (0.0, 0.0)
    assert (late.phase, late.idle_s, late.silent_s) == ("running", pytest.approx(42.0), 0.0)
    assert "running, no step for 42.0 s" in plain_lines(late)[0]
    assert late.happenings[-1].text == "no rank has moved for 39.0 s"
    assert late.happenings[-1].kind == "warning"


@pytest.mark.parametrize(("code", "phase"), [(0, "ended"), (130, "stopped"), (7, "failed")])
def test_a_run_that_somebody_stopped_has_not_failed(tmp_path: Path, code: int, phase: str) -> None:
    story = journals.two_steps(tmp_path)
    story.write("run.end", "", exit_code=code, root_rank=-1)
    story.close()

    assert status_of(read_run(tmp_path), journals.WALL).phase == phase
