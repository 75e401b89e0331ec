"""The report of a failed run: short, the cause first, safe for a terminal."""

import signal
from pathlib import Path

import pytest

from recoverrun.reports.failure_report import (
    LINES,
    NOTHING_YET,
    failure_report,
    where_from,
    without_journal,
)
from recoverrun.reports.history import history
from recoverrun.reports.postmortem import postmortem
from recoverrun.text import named_signals
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import journal_path
from rendezvous.protocol.exit_codes import ExitCode
from tests.unit import journals
from tests.unit.journals import Story


@pytest.mark.parametrize("name", sorted(journals.RUNS))
@pytest.mark.parametrize("code", [1, 81, 85, 93, 130, 137])
def test_the_report_is_short_and_ends_with_the_next_command(
    tmp_path: Path, name: str, code: int
) -> None:
    log = read_run(journals.RUNS[name](tmp_path))

    lines = failure_report(log, code, Path("runs/tiny")).splitlines()

    assert len(lines) <= LINES
    assert lines[0].startswith(("FAILED: ", "STOPPED: "))
    assert lines[-1] == "  next: recoverrun postmortem runs/tiny"


def test_the_report_names_the_cause_first_and_folds_the_victims(tmp_path: Path) -> None:
    log = read_run(journals.user_exception(tmp_path))

    text = failure_report(log, 1, Path("runs/tiny"))

    first, *rest = text.splitlines()
    expected = "FAILED: rank 1 raised ValueError: bad shard 8812"
    assert first == expected
    assert any("ranks 4, 5 were healthy" in line for line in rest)
    assert "Connection closed" not in text


def test_a_run_that_ended_well_has_no_report(tmp_path: Path) -> None:
    assert failure_report(read_run(journals.clean(tmp_path)), 0, tmp_path) == ""


def test_the_report_shows_where_an_exception_came_from(tmp_path: Path) -> None:
    log = read_run(journals.user_exception(tmp_path))
    stack = """Traceback (most recent call last):
  File "/home/me/train.py", line 214, in <module>
    main()
  File "/home/me/train.py", line 180, in main
    step(batch)
  File "/home/me/train.py", line 90, in step
    load(8812)
    ^^^^^^^^^^
  File "/home/me/data.py", line 88, in load
    raise ValueError(f"bad shard {shard}")
ValueError: bad shard 8812"""

    lines = failure_report(
        log, 1, Path("runs/tiny"), traceback=stack.splitlines(), stderr=Path("/logs/1/stderr.log")
    ).splitlines()

    assert lines[1] == "  at train.py:180 main → train.py:90 step → data.py:88 load"
    assert lines[2] == '  > raise ValueError(f"bad shard {shard}")'
    assert "  log: /logs/1/stderr.log" in lines
    assert len(lines) <= LINES


def test_the_scripts_own_line_is_shown_however_deep_in_a_library_the_error_was() -> None:
    torch = "/env/lib/python3.11/site-packages/torch"
    stack = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 11, in <module>
    dist.broadcast_object_list(box, src=0)
  File "{torch}/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
  File "{torch}/distributed/distributed_c10d.py", line 4026, in broadcast_object_list
    broadcast(sizes, group_src=group_src, group=group)
  File "{torch}/distributed/distributed_c10d.py", line 3145, in broadcast
    work = group.broadcast([tensor], opts)
PeerLost: rank 0 is lost"""

    calls = "distributed_c10d.py:4026 broadcast_object_list → distributed_c10d.py:3145 broadcast"
    assert where_from(stack.splitlines()) == [
        f"at train.py:11 <module> → … → {calls}", "> dist.broadcast_object_list(box, src=0)"
    ]  # fmt: skip


@pytest.mark.parametrize("world_size", [4, 8, 64])
def test_one_exception_among_many_ranks_is_a_short_report(tmp_path: Path, world_size: int) -> None:
    """Check 4 of the user experience: 12 lines at most, at 4, 8 and 64 ranks."""
    story = Story(tmp_path)
    story.write(
        "run.start", "", run_id="r", argv=["x.py"], world_size=world_size, nnodes=1, version="1",
        inject="",
    )  # fmt: skip
    story.write("node.join", "", name="gpu-01", nproc=world_size)
    closed = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4312"
    root = world_size // 2
    story.exit(0, code=1, error=closed)  # A victim may even be gone before its cause.
    story.exit(root, code=1, error="ValueError: bad shard 8812")
    for rank in set(range(1, world_size)) - {root}:
        story.wait(0.001)
        story.exit(rank, code=1, error=closed if rank % 2 else "", ours=not rank % 2)
    cause = f"rank {root} exited with code 1: ValueError: bad shard 8812"
    story.end(1, root, cause)

    text = failure_report(
        read_run(story.close()), 1, tmp_path, traceback=['  File "a", line 1, in f']
    )

    assert text.splitlines()[0] == f"FAILED: {cause}"
    assert len(text.splitlines()) <= LINES
    assert "were healthy" in text and "folded" in text and "Connection" not in text


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGTERM", "SIGINT"])
def test_what_somebody_asked_for_is_no_failure(tmp_path: Path, name: str) -> None:
    story = Story(tmp_path)
    story.start()
    code = 128 + getattr(signal, name)
    story.end(code, -1)

    text = failure_report(read_run(story.close()), code, tmp_path)

    assert text.startswith("STOPPED: ")


@pytest.mark.parametrize("left", [86, 80])
def test_how_a_node_left_that_was_left_out_is_not_how_the_run_ended(
    tmp_path: Path, left: int
) -> None:
    story, stopped = Story(tmp_path), 128 + signal.SIGINT
    known = {"run_id": "r", "nnodes": 2, "version": "1", "inject": "", "folder": "x/1"}
    for node in ("gpu-01", "gpu-02"):
        story.write("run.start", "", node, argv=["x.py"], world_size=2, **known)
    story.write("run.end", "cut off", "gpu-02", exit_code=left, root_rank=-1)
    story.wait(1)
    story.write("run.end", "SIGINT was sent", "gpu-01", exit_code=stopped, root_rank=-1)
    log = read_run(story.close())

    found = postmortem(log)
    assert (found.exit_code, found.end_reason) == (stopped, "SIGINT was sent")
    assert failure_report(log, stopped, tmp_path).startswith("STOPPED: SIGINT was sent")
    assert failure_report(log, left, tmp_path).splitlines()[0].endswith(": cut off")


def test_a_node_that_left_earlier_is_lost_once_and_is_not_how_the_run_ended(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    story.start(nodes=2)
    story.write("node.lost", "gpu-01: SIGTERM was sent", name="gpu-01", ranks=[0, 1, 2])
    story.write(
        "node.lost", "gpu-01: SIGTERM was sent", "gpu-02", name="gpu-01", ranks=[0, 1, 2], part=True
    )
    story.wait(1.0)
    story.write(
        "run.end", "SIGTERM was sent", "gpu-01", exit_code=ExitCode.TERMINATED, root_rank=-1
    )
    story.wait(1.0)
    story.write(
        "run.end", "SIGINT was sent", "gpu-02", exit_code=ExitCode.INTERRUPTED, root_rank=-1
    )
    facts = history(read_run(story.close()))

    assert facts.exit_code == ExitCode.INTERRUPTED
    assert [death.ranks for death in facts.deaths] == [(0, 1, 2)]


def test_how_a_node_left_that_came_back_is_not_how_the_run_ended(tmp_path: Path) -> None:
    story, stopped = Story(tmp_path), 128 + signal.SIGINT
    known = {"run_id": "r", "nnodes": 2, "version": "1", "inject": "", "folder": "x/1"}
    for node in ("gpu-01", "gpu-02"):
        story.write("run.start", "", node, argv=["x.py"], world_size=2, **known)
    story.write("run.end", "cut off", "gpu-02", exit_code=ExitCode.PARTITIONED, root_rank=-1)
    story.wait(1)
    story.write("run.start", "", "gpu-02", argv=["x.py"], world_size=2, **known)
    for node in ("gpu-01", "gpu-02"):
        story.write("run.end", "SIGINT was sent", node, exit_code=stopped, root_rank=-1)
    log = read_run(story.close())

    assert failure_report(log, stopped, tmp_path).startswith("STOPPED: SIGINT was sent")
    assert postmortem(log).exit_code == stopped


@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_run_whose_steps_nobody_votes_on_is_not_said_to_have_done_none(
    rolls_back: bool, tmp_path: Path
) -> None:
    story = Story(tmp_path)
    story.write(
        "run.start", "", run_id="r", argv=["x.py"], world_size=1, nnodes=1, version="1", inject=""
    )
    story.write("node.join", "", name="gpu-01", nproc=1)
    if rolls_back:
        story.write("promise.state", "one process", promise="rollback", microbatches=1)
    story.exit(0, code=1)
    story.end(1, 0)

    text = failure_report(read_run(story.close()), 1, tmp_path)
    assert ("it failed before the first step" in text) != rolls_back


@pytest.mark.parametrize(
    ("promise", "safe", "told"),
    [("rollback", False, True), ("rollback", True, False), ("unprotected", False, False)],
)
def test_a_loss_before_the_first_snapshot_is_told_as_one(
    promise: str, safe: bool, told: bool, tmp_path: Path
) -> None:
    story = Story(tmp_path)
    story.write("promise.state", "one process", promise=promise, microbatches=1)
    if safe:
        story.write("snapshot.safe", "", attempt=0, step=3)
    story.exit(0, signal=9)
    story.end(137, 0)

    text = failure_report(read_run(story.close()), 137, tmp_path)

    assert (NOTHING_YET in text) is told


def test_signals_are_named() -> None:
    assert named_signals("rank 3 was ended by signal 11") == "rank 3 was killed by SIGSEGV"
    assert named_signals("rank 3 was ended by signal 99") == "rank 3 was ended by signal 99"


def test_a_code_that_is_reserved_is_told_apart(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(1, code=99)
    story.end(1, 1)

    text = failure_report(read_run(story.close()), 1, tmp_path)
    assert "the script's own code was 99" in text


def test_the_report_prints_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(1, code=1, error="ValueError: \x1b[2J\x1b]0;owned\x07 \u202egnp\x9b31m\r\nnext: rm")
    story.end(1, 1)

    text = failure_report(read_run(story.close()), 1, tmp_path)
    assert not set(text) & set("\x1b\x07\r\u202e\x9b")
    assert "owned" not in text


def test_a_journal_that_is_missing_altogether_still_gives_a_report(tmp_path: Path) -> None:
    text = failure_report(read_run(tmp_path / "nowhere"), 1, tmp_path)

    assert text.startswith("FAILED: exit code 1")
    assert not journal_path(tmp_path, "gpu-01").exists()


def test_a_run_whose_journal_is_gone_names_its_cause_all_the_same() -> None:
    text = without_journal("rank 1 was ended by signal 9", 137, Path("runs/train/1"))

    assert text.splitlines() == [
        "FAILED: rank 1 was killed by SIGKILL",
        "  no report: the journal of this run in runs/train/1 was removed",
    ]
