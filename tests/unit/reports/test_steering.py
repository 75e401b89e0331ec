"""A collective over survivors alone is told in words that are still true once all are back."""

from pathlib import Path

from recoverrun.reports.postmortem import postmortem
from recoverrun.worker.rank0.broadcasts import STEERS
from rendezvous.protocol.records import Record
from tests.unit.returning_run import BEGAN, ReturningRun
from tests.unit.run_status import status_of

SAID = (
    "the all_reduce at eval.py:40 is over 2 of 3 ranks while others are lost: what the script "
    "computes from it may differ"
)


def test_what_is_over_survivors_alone_is_of_the_past_once_all_are_back(tmp_path: Path) -> None:
    run = ReturningRun(tmp_path)
    run.commit()
    run.lose(1)
    run.write(Record("notice.give", SAID, {"rank": 0, "event": "promise.steer"}))
    run.commit()
    status = status_of(run.log(), BEGAN + run.now)
    assert "is over 2 of 3 ranks while others are lost" in status.promise_reason

    run.bring_back(1)
    run.commit()

    log = run.log()
    status, found = status_of(log, BEGAN + run.now), postmortem(log)
    was = (
        "the all_reduce at eval.py:40 was over 2 of 3 ranks while others were lost: what the script"
    )
    assert status.promise_reason.startswith(was)
    assert found.steered.startswith(was)
    assert status.promise.endswith("; steered by eval.py:40"), "which is not taken back"
    run.close()


def test_what_was_sent_in_the_place_of_rank_0_is_of_the_past_as_well(tmp_path: Path) -> None:
    said = STEERS.format("plan.py:7", 1, 0)
    run = ReturningRun(tmp_path)
    run.commit()
    run.lose(0)
    run.write(Record("notice.give", said, {"rank": 1, "event": "promise.steer"}))
    run.commit()
    assert postmortem(run.log()).steered == said

    run.bring_back(0)
    run.commit()

    status = status_of(run.log(), BEGAN + run.now)
    assert "at plan.py:7 was made by rank 1 in the place of lost rank 0" in status.promise_reason
    assert status.promise.endswith("; steered by plan.py:7")
    run.close()
