"""The first failure: every rule on a journal that shows it."""

from dataclasses import replace
from pathlib import Path

import pytest

from recoverrun.reports.failure_report import failure_report
from recoverrun.reports.history import history
from recoverrun.reports.named_cause import RootCause
from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.root_cause import also, evidence, losses, root_cause
from recoverrun.reports.single_end import is_cascade
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import journal_path
from tests.unit import journals
from tests.unit.journals import Story
from tests.unit.run_status import status_of


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


@pytest.mark.parametrize(
    ("inject", "said"),
    [
        ("", "rank 3 was killed by SIGKILL, which recoverrun did not send"),
        ("r3@step:12:backward", "rank 3 was killed by SIGKILL"),
    ],
)
def test_a_run_that_injects_faults_does_not_say_that_it_sends_no_signal(
    tmp_path: Path, inject: str, said: str
) -> None:
    story = Story(tmp_path)
    story.start(inject=inject)
    story.exit(3, signal=9)

    assert _root(story.close()).what == said


def test_the_kill_ledger_counts_even_where_the_exit_record_does_not_say_ours(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    story.start()
    story.kill(2)
    story.exit(2, signal=9)
    story.exit(3, signal=11)

    assert _root(story.close()).rank == 3


def test_a_fault_that_our_signal_only_followed_is_not_ours(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.write("worker.kill", "", ranks=[2], signal="SIGKILL")
    story.exit(2, signal=11)

    assert _root(story.close()).cause == "sigsegv"


def test_an_end_with_code_0_is_the_cause_of_the_loss_that_came_of_it(tmp_path: Path) -> None:
    story = journals.two_steps(tmp_path)
    story.exit(3)
    story.lose(1, 3, "rank 3 exited with code 0 before the end of step 3")
    story.exit(2, signal=9, ours=True)
    story.recovered(3, {1: 3}, [(1, 0)])
    for rank in (0, 1, 4, 5):
        story.exit(rank)
    story.end()
    log = read_run(story.close())

    (loss,) = losses(log)

    assert (loss.root.rank, loss.root.cause, loss.root.confidence) == (3, "exit", "proved")
    assert loss.root.what == "rank 3 exited with code 0 while others still trained"
    assert root_cause(log) is None  # those who ended last are to blame for nothing


def test_where_all_errors_tell_of_another_end_it_was_the_one_with_code_0(tmp_path: Path) -> None:
    story = journals.two_steps(tmp_path)
    story.exit(3)
    story.exit(0, code=1, error="RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4312")
    story.end(1, 0, "rank 0 exited with code 1")

    root = root_cause(read_run(story.close()))

    assert root is not None
    assert (root.rank, root.confidence, root.cascades) == (3, "likely", 1)


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


def test_a_replica_that_is_outvoted_is_lost_for_its_parameters(tmp_path: Path) -> None:
    (loss,) = losses(read_run(journals.outvoted(tmp_path)))

    assert (loss.root.rank, loss.root.cause, loss.root.confidence) == (3, "parameters", "proved")
    assert loss.root.what == "rank 3: its parameters differ from the others'"
    assert loss.root.victims == (2,)


def test_the_same_exception_everywhere_is_the_script_and_not_a_machine(tmp_path: Path) -> None:
    root = _root(journals.user_exception(tmp_path))

    assert (root.rank, root.same, root.victims) == (1, (0, 2, 3), (4, 5))
    assert root.cascades == 2


def test_what_survivors_miss_of_a_lost_rank_is_no_slip_of_the_script(tmp_path: Path) -> None:
    error = "PeerLost: dist.broadcast: rank 1 is lost, and nobody can speak for it"
    story = Story(tmp_path)
    story.start(nodes=3)
    for rank in (0, 2):
        story.exit(rank, code=1, error=error)
    story.end(1, 0, f"rank 0 exited with code 1: {error}")

    words = "the very same error on rank 2: the script needs what only a lost rank could tell"
    assert also(_root(story.close())) == words


def test_the_same_exception_on_one_node_of_several_may_be_the_nodes(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start(nodes=3)
    for rank in (2, 3):
        story.exit(
            rank,
            code=1,
            error="ValueError: bad shard 8812",
            node="gpu-02",
        )
    story.end(1, 2, "rank 2 exited with code 1: ValueError: bad shard 8812")

    words = "the very same error on rank 3: of one node, gpu-02, or of the script"
    assert also(_root(story.close())) == words


def test_who_failed_by_its_own_error_was_not_healthy_even_if_we_ended_it(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(2, code=1, error="ValueError: bad shard 8812")
    story.exit(4, code=1, error="ValueError: bad shard 8812", ours=True)
    story.exit(0, code=1, error="KeyError: 'rank0'", ours=True)
    story.exit(1, code=1, error="RuntimeError: Connection closed by peer [10.0.0.2]:4411")
    story.exit(3, signal=15, ours=True)
    story.end(1, 2, "rank 2 exited with code 1: ValueError: bad shard 8812")

    root = _root(story.close())
    assert (root.same, root.others, root.victims) == ((4,), (0,), (1, 3))
    assert "errors of their own on rank 0" in also(root)


def test_whoever_failed_earlier_comes_first_even_if_its_process_ended_later(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(0, code=1, error="ValueError: at 0")
    story.wait(0.1)
    story.exit(3, code=1, error="ValueError: at 3", age_ms=180.0)

    root = _root(story.close())
    assert (root.rank, root.others) == (3, (0,))
    assert root.why_first == "80 ms before the next fault, rank 0"


def test_the_root_is_the_rank_that_the_coordinator_named_as_the_run_ended(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(0, code=1, error="ValueError: at 0")
    story.wait(0.1)
    story.exit(3, code=1, error="ValueError: at 3")
    reason = "rank 3 exited with code 1: ValueError: at 3; 0 of at least 1 replicas are left"
    story.end(1, 3, reason)
    log = read_run(story.close())

    found = postmortem(log)
    assert found.root is not None and found.root.rank == 3
    assert status_of(log, 0.0).cause == found.root.what
    assert failure_report(log, 1, tmp_path).startswith(f"FAILED: {reason}")


def test_a_root_on_another_node_is_named_where_its_journal_is_not(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(0, signal=15, ours=True)
    reason = "rank 3 was ended by signal 11"
    story.write("run.end", reason, exit_code=139, root_rank=3, root_node="gpu-02")
    log = read_run(story.close())

    root = _root(tmp_path)
    assert (root.rank, root.node, root.victims) == (3, "gpu-02", (0,))
    first = failure_report(log, 139, tmp_path).splitlines()[0]
    assert first == "FAILED: rank 3 was killed by SIGSEGV (node gpu-02)"
    assert status_of(log, 0.0).cause == root.what == "rank 3 was killed by SIGSEGV"


def test_a_lost_node_is_named_by_every_node_in_the_same_words(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start(nodes=3)
    story.write("node.lost", "gpu-02: its launcher has ended", ranks=[2, 3])
    reason = "node gpu-02 is lost: its launcher has ended"
    story.write("run.end", reason, exit_code=137, root_rank=2, root_node="gpu-02")
    log = read_run(story.close())

    assert failure_report(log, 137, tmp_path).splitlines()[0] == f"FAILED: {reason}"
    assert _root(tmp_path).cause == "node-lost"


def test_a_cascade_that_is_first_in_the_journal_is_not_the_cause(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(0, code=1, error="RuntimeError: Connection closed by peer [10.0.0.2]:4411")
    story.wait(0.5)
    story.exit(5, signal=11)

    root = _root(story.close())
    assert (root.rank, root.cascades) == (5, 1)


def test_with_nothing_but_cascades_the_verdict_says_that_it_is_unknown(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(0, code=1, error="RuntimeError: Connection reset by peer")

    assert _root(story.close()).confidence == "unknown"


def test_faults_of_two_nodes_within_the_clocks_error_are_tied(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start(nodes=3)
    story.exit(0, signal=11)
    story.wait(0.01)
    story.exit(5, signal=11, node="gpu-03")

    root = _root(story.close())
    assert (root.rank, root.tied, root.confidence) == (0, (5,), "likely")


def test_a_fault_that_was_made_good_is_not_why_the_run_failed_later(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(3, signal=9)
    story.lose(1, 3, "rank 3 was killed by SIGKILL")
    story.commit(0)
    story.recovered(0, {1: 3}, [])
    story.commit(1)
    story.exit(4, code=1, error="ValueError: late")
    story.end(1, 4)

    root = _root(story.close())
    assert root.rank == 4
    assert "rank 3" not in root.why_first  # it came before, not next


def test_a_loss_without_an_end_in_the_journal_names_what_the_coordinator_said(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    story.start()
    story.lose(2, 5, "rank 5 was killed by SIGKILL")

    (loss,) = losses(read_run(story.close()))
    assert (loss.root.rank, loss.root.cause, loss.root.confidence) == (5, "unknown", "unknown")


def test_a_node_that_is_lost_while_its_replica_is_away_is_not_the_cause_of_that(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    story.start(nodes=3)
    story.lose(1, 3, "rank 3 was ended by signal 9")
    story.commit(0)
    story.recovered(0, {1: 3}, [])
    story.wait(2.1)
    story.write("node.lost", "gpu-02: its launcher has ended", name="gpu-02", ranks=[2, 3])
    story.close()
    journal_path(tmp_path, "gpu-02").unlink()

    (loss,) = losses(read_run(tmp_path))
    assert (loss.root.rank, loss.root.cause, loss.root.confidence) == (3, "sigkill", "likely")
    assert loss.root.what == "rank 3 was killed by SIGKILL"


def test_a_slot_that_is_lost_twice_has_two_causes(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(3, signal=9)
    story.lose(1, 3, "rank 3 was killed by SIGKILL")
    story.commit(0)
    story.recovered(0, {1: 3}, [])
    for rank in (2, 3):
        story.write("worker.spawn", "", rank=rank, pid=9000 + rank, incarnation=1)
    story.live = [0, 1, 2]
    story.write("replica.return", "replica 1 is back", slot=1, ranks=[2, 3], step=1)
    story.commit(1)
    story.write(
        "worker.exit", "rank 3 exited with code 5", rank=3, pid=9003, code=5, signal=0,
        ours=False, error="",
    )  # fmt: skip
    story.lose(1, 3, "rank 3 exited with code 5")

    first, second = losses(read_run(story.close()))
    assert (first.root.cause, second.root.cause) == ("sigkill", "exit")


@pytest.mark.parametrize(
    ("error", "cascade"),
    [
        ("RuntimeError: [gloo/transport/tcp] Connection closed by peer [127.0.0.1]:1", True),
        ("DistNetworkError: Broken pipe", True),
        ("RuntimeError: ProcessGroupNCCL work was aborted", True),
        ("ValueError: bad shard 8812", False),
        ("BrokenPipeError: [Errno 32] Broken pipe", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
    ],
)
def test_cascades_are_told_by_their_words(tmp_path: Path, error: str, cascade: bool) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(0, code=1, error=error)

    (death,) = history(read_run(story.close())).deaths
    assert is_cascade(death) is cascade


def test_the_end_of_a_rank_that_hung_is_not_what_came_after_it(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.write("hang.condemn", "rank 3 hangs", hang=1, rank=3, step=0,
                phase="microbatch", lag_s=3.0, where="data.py:131 load", proof="same")  # fmt: skip
    story.exit(3, signal=9, ours=True)

    assert _root(story.close()).why_first == "the only fault in the journal"


def test_evidence_that_says_what_is_said_already_is_none(tmp_path: Path) -> None:
    root = _root(journals.one_loss(tmp_path))

    assert evidence(replace(root, evidence="rank 3 was ended by signal 9")) == ""
    assert evidence(replace(root, evidence="memory.events: oom_kill 0 to 1")) == (
        "memory.events: oom_kill 0 to 1"
    )


def test_the_kernels_want_of_memory_is_named(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start()
    story.exit(3, signal=9, oom=True)
    run_dir = story.close()

    root = _root(run_dir)

    assert (root.rank, root.cause) == (3, "out of memory")
    assert "rank 3 was killed by SIGKILL: the kernel had no memory left for it" in root.what
