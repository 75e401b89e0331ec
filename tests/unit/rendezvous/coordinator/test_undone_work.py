"""Work behind the last step that nobody has done in the place of a lost rank."""

import pytest

from rendezvous.protocol.effects import Effect
from rendezvous.protocol.messages import Committed, Farewell
from tests.unit.coordination import PAIRS, THREE, Job, applied, exit_code, stopped, waits

FULL_DISK = "OSError: [Errno 28] No space left on device"


def leaves(rank: int, passed_by: str = "", generation: int = 1) -> Farewell:
    return Farewell(rank=rank, generation=generation, step=1, passed_by=passed_by)


def gone(job: Job, *ranks: int) -> list[Effect]:
    return job.end(*ranks, code=0)


def test_a_script_that_fails_after_the_last_step_fails_the_job() -> None:
    job = Job()
    job.tell(leaves(0), leaves(2))
    job.end(1, code=3, error=FULL_DISK)

    stop = stopped(gone(job, 0, 2))

    assert (stop.exit_code, stop.root_rank) == (3, 1)
    words = "rank 1 exited with code 3: " + FULL_DISK
    assert stop.reason == f"{words}, after the last step: what it had left to do may be missing"


def test_a_killed_rank_other_than_rank_0_leaves_nothing_undone() -> None:
    job = Job()
    job.tell(leaves(0), leaves(2, passed_by="train.py:8"))
    job.end(1)

    assert exit_code(gone(job, 0, 2)) == 0


def test_what_rank_0_had_begun_alone_as_it_was_killed_may_be_missing() -> None:
    job = Job()
    job.end(0)
    job.tell(leaves(1, passed_by="train.py:8", generation=2), leaves(2, generation=2))

    stop = stopped(gone(job, 1, 2))

    assert (stop.exit_code, stop.root_rank) == (137, 0)
    words = "after the last step: what rank 0 does alone at train.py:8 may be missing"
    assert stop.reason == f"rank 0 was ended by signal 9, {words}"


def test_of_a_deputy_that_ended_without_a_word_nothing_is_known() -> None:
    job = Job()
    job.end(0)

    stop = stopped(gone(job, 1, 2))

    assert stop.exit_code == 137
    assert stop.reason.endswith("after the last step: what rank 0 does alone there may be missing")


def test_a_deputy_that_passed_nothing_by_has_done_it() -> None:
    job = Job()
    job.end(0)
    job.tell(leaves(1, generation=2), leaves(2, passed_by="train.py:8", generation=2))

    assert exit_code(gone(job, 1, 2)) == 0


def test_a_lost_deputy_is_as_rank_0_was() -> None:
    job = Job()
    job.end(0)
    job.tell(waits(1), waits(2))
    job.tell(_committed(1), _committed(2))
    job.tell(leaves(2, passed_by="train.py:8", generation=2))
    job.end(1)

    stop = stopped(gone(job, 2))

    assert (stop.exit_code, stop.root_rank) == (137, 1)


def _committed(rank: int) -> Committed:
    return applied(rank, (rank, 0), generation=2)


def test_what_a_deputy_could_not_do_at_the_end_fails_the_job() -> None:
    job = Job()
    job.end(0)
    job.tell(waits(1), waits(2))
    job.tell(_committed(1), _committed(2))
    failed = Farewell(rank=1, generation=2, step=1, failed=f"train.py:8: {FULL_DISK}")
    job.tell(failed, leaves(2, generation=2))

    stop = stopped(gone(job, 1, 2))

    assert (stop.exit_code, stop.root_rank) == (1, 1)
    words = "rank 1 failed after the last step, in the place of rank 0, at train.py:8: "
    assert stop.reason == words + FULL_DISK


def test_a_loss_that_a_step_has_met_fails_nothing() -> None:
    job = Job()
    job.end(0, code=1, error=FULL_DISK)
    job.tell(waits(1), waits(2))
    job.tell(_committed(1), _committed(2))
    job.tell(leaves(1, passed_by="train.py:8", generation=2), leaves(2, generation=2))

    assert exit_code(gone(job, 1, 2)) == 0


@pytest.mark.parametrize("replicas", [THREE, PAIRS])
def test_a_rank_that_ends_because_of_another_is_not_the_cause(
    replicas: tuple[tuple[int, ...], ...],
) -> None:
    job = Job(replicas)
    rest = [rank for rank in range(len(replicas) * len(replicas[0])) if rank not in replicas[2]]
    job.tell(*map(leaves, rest))
    job.end(replicas[2][0], code=1, error="RuntimeError: Connection closed by peer")

    assert exit_code(gone(job, *rest)) == 0
