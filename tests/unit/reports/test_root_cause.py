"""Who failed first: every rule on a journal that shows it."""

import signal
from pathlib import Path

import pytest

from recoverrun.reports.failure_report import LINES, failure_report
from recoverrun.reports.history import history
from recoverrun.reports.root_cause import RootCause, is_cascade, losses, root_cause
from recoverrun.text import named_signals
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import journal_path
from tests.unit import journals
from tests.unit.journals import Scene


def _root(run_dir: Path) -> RootCause:
    found = root_cause(read_run(run_dir))
    assert found is not None
    return found


def test_a_clean_run_has_no_root_cause(tmp_path: Path) -> None:
    assert root_cause(read_run(journals.clean(tmp_path))) is None


def test_the_rank_that_we_killed_is_a_victim_never_a_cause(tmp_path: Path) -> None:
    root = _root(journals.one_loss(tmp_path))

    assert (root.rank, root.cause, root.victims) == (3, "sigkill", (2,))
    assert root.confidence == "proved"
    assert "r3@step:12:backward" in root.why_first


def test_the_kill_ledger_counts_even_where_the_exit_record_does_not_say_ours(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.kill(2)
    scene.exit(2, signal=9)
    scene.exit(3, signal=11)

    assert _root(scene.close()).rank == 3


def test_a_fault_that_our_signal_only_followed_is_not_ours(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.write("worker.kill", "", ranks=[2], signal="SIGKILL")
    scene.exit(2, signal=11)

    assert _root(scene.close()).cause == "sigsegv"


def test_two_losses_at_once_have_their_own_roots(tmp_path: Path) -> None:
    first, second = losses(read_run(journals.two_at_once(tmp_path)))

    assert (first.root.rank, first.root.cause, first.root.victims) == (3, "sigkill", (2,))
    assert (second.root.rank, second.root.cause, second.root.victims) == (4, "sigsegv", (5,))
    assert first.recovery is second.recovery


def test_a_loss_during_recovery_has_its_own_root(tmp_path: Path) -> None:
    first, second = losses(read_run(journals.loss_during_recovery(tmp_path)))

    assert (first.root.rank, second.root.rank) == (3, 5)
    assert second.root.cause == "exit"
    assert "code 7" in second.root.what


def test_a_silent_node_is_one_fault_and_its_ranks_are_not_blamed(tmp_path: Path) -> None:
    log = read_run(journals.node_lost(tmp_path))

    (loss,) = losses(log)
    assert loss.root.cause == "node-lost"
    assert loss.root.victims == (3,)
    assert loss.root.confidence == "likely"
    assert "gpu-02" in loss.root.why_first


def test_the_same_exception_everywhere_is_the_script_and_not_a_machine(tmp_path: Path) -> None:
    root = _root(journals.user_exception(tmp_path))

    assert (root.rank, root.same, root.victims) == (1, (0, 2, 3), (4, 5))
    assert root.cascades == 2


def test_a_cascade_that_is_first_in_the_journal_is_not_the_cause(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.exit(0, code=1, error="RuntimeError: Connection closed by peer [10.0.0.2]:4411")
    scene.wait(0.5)
    scene.exit(5, signal=11)

    root = _root(scene.close())
    assert (root.rank, root.cascades) == (5, 1)


def test_with_nothing_but_cascades_the_verdict_says_that_it_is_unknown(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.exit(0, code=1, error="RuntimeError: Connection reset by peer")

    assert _root(scene.close()).confidence == "unknown"


def test_faults_of_two_nodes_within_the_clocks_error_are_tied(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start(nodes=3)
    scene.exit(0, signal=11)
    scene.wait(0.01)
    scene.exit(5, signal=11, node="gpu-03")

    root = _root(scene.close())
    assert (root.rank, root.tied, root.confidence) == (0, (5,), "likely")


def test_a_fault_that_was_made_good_is_not_why_the_run_failed_later(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.exit(3, signal=9)
    scene.lose(1, 3, "rank 3 was killed by SIGKILL")
    scene.commit(0)
    scene.recovered(0, {1: 3}, [])
    scene.commit(1)
    scene.exit(4, code=1, error="ValueError: late")
    scene.end(1, 4)

    assert _root(scene.close()).rank == 4


def test_a_loss_without_an_end_in_the_journal_names_what_the_coordinator_said(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.lose(2, 5, "rank 5 was killed by SIGKILL")

    (loss,) = losses(read_run(scene.close()))
    assert (loss.root.rank, loss.root.cause, loss.root.confidence) == (5, "unknown", "unknown")


def test_a_slot_that_is_lost_twice_has_two_causes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.exit(3, signal=9)
    scene.lose(1, 3, "rank 3 was killed by SIGKILL")
    scene.commit(0)
    scene.recovered(0, {1: 3}, [])
    for rank in (2, 3):
        scene.write("worker.spawn", "", rank=rank, pid=9000 + rank, incarnation=1)
    scene.live = [0, 1, 2]
    scene.commit(1)
    scene.write(
        "worker.exit", "rank 3 exited with code 5", rank=3, pid=9003, code=5, signal=0,
        ours=False, error="",
    )  # fmt: skip
    scene.lose(1, 3, "rank 3 exited with code 5")

    first, second = losses(read_run(scene.close()))
    assert (first.root.cause, second.root.cause) == ("sigkill", "exit")


@pytest.mark.parametrize(
    ("error", "cascade"),
    [
        ("RuntimeError: [gloo/transport/tcp] Connection closed by peer [127.0.0.1]:1", True),
        ("DistNetworkError: Broken pipe", True),
        ("RuntimeError: ProcessGroupNCCL work was aborted", True),
        ("ValueError: bad shard 8812", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
    ],
)
def test_cascades_are_told_by_their_words(tmp_path: Path, error: str, cascade: bool) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.exit(0, code=1, error=error)

    (death,) = history(read_run(scene.close())).deaths
    assert is_cascade(death) is cascade


# ----------------------------------------------------------------------------------- the report


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
    expected = "FAILED: rank 1 raised ValueError: bad shard 8812 (node gpu-01, replica 0, pid 4101)"
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


@pytest.mark.parametrize("world_size", [4, 64])
def test_one_exception_among_many_ranks_is_a_short_report(tmp_path: Path, world_size: int) -> None:
    scene = Scene(tmp_path)
    scene.write(
        "run.start", "", run_id="r", argv=["x.py"], world_size=world_size, nnodes=1, version="1",
        inject="",
    )  # fmt: skip
    scene.write("node.join", "", name="gpu-01", nproc=world_size)
    closed = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4312"
    root = world_size // 2
    scene.exit(0, code=1, error=closed)  # A victim may even be gone before its cause.
    scene.exit(root, code=1, error="ValueError: bad shard 8812")
    for rank in set(range(1, world_size)) - {root}:
        scene.wait(0.001)
        scene.exit(rank, code=1, error=closed if rank % 2 else "", ours=not rank % 2)
    scene.end(1, root, "the reason")
    cause = f"FAILED: rank {root} exited with code 1: ValueError: bad shard 8812"

    text = failure_report(
        read_run(scene.close()), 1, tmp_path, cause, root, traceback=['  File "a", line 1, in f']
    )

    assert text.splitlines()[0] == cause
    assert len(text.splitlines()) <= LINES
    assert "were healthy" in text and "folded" in text and "Connection" not in text


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGTERM", "SIGINT"])
def test_what_somebody_asked_for_is_no_failure(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path)
    scene.start()
    code = 128 + getattr(signal, name)
    scene.end(code, -1)

    text = failure_report(read_run(scene.close()), code, tmp_path)

    assert text.startswith("STOPPED: ")


def test_signals_are_named() -> None:
    assert named_signals("rank 3 was ended by signal 11") == "rank 3 was killed by SIGSEGV"
    assert named_signals("rank 3 was ended by signal 99") == "rank 3 was ended by signal 99"


def test_a_code_that_is_reserved_is_told_apart(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.exit(1, code=99)
    scene.end(1, 1)

    text = failure_report(read_run(scene.close()), 1, tmp_path)
    assert "the script's own code was 99" in text


def test_the_report_prints_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start()
    scene.exit(1, code=1, error="ValueError: \x1b[2J\x1b]0;owned\x07 \u202egnp\x9b31m\r\nnext: rm")
    scene.end(1, 1)

    text = failure_report(read_run(scene.close()), 1, tmp_path)
    assert not set(text) & set("\x1b\x07\r\u202e\x9b")
    assert "owned" not in text


def test_a_journal_that_is_missing_altogether_still_gives_a_report(tmp_path: Path) -> None:
    text = failure_report(read_run(tmp_path / "nowhere"), 1, tmp_path)

    assert text.startswith("FAILED: exit code 1")
    assert not journal_path(tmp_path, "gpu-01").exists()
