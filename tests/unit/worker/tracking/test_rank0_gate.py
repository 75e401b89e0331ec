"""The gate of code for rank 0 alone remembers what was left undone since the last step."""

from recoverrun.worker.tracking.rank0_gate import Rank0Gate

PLACE = "/job/train.py:8"


def test_the_first_place_that_was_passed_by_is_known_until_the_next_step() -> None:
    gate = Rank0Gate(own_rank=1)

    assert not gate.first(PLACE, True, False)
    gate.first("/job/train.py:9", True, False)
    passed = gate.passed_by
    gate.begin_anew()

    assert (passed, gate.passed_by) == ("train.py:8", "")


def test_a_deputy_passes_nothing_by() -> None:
    gate = Rank0Gate(own_rank=1)
    gate.is_deputy = lambda: True

    assert gate.first(PLACE, True, False)
    assert not gate.passed_by


def test_errors_of_a_place_are_told_more_and_more_seldom() -> None:
    gate = Rank0Gate(own_rank=1)

    told = [n for n in range(1, 20) if gate.fail(PLACE, OSError("full"))]

    assert told == [1, 2, 4, 8, 16]
    assert gate.fail("/job/train.py:9", OSError("full")), "each place counts by itself"


def test_the_first_error_since_the_last_step_is_known() -> None:
    gate = Rank0Gate(own_rank=1)
    gate.fail(PLACE, OSError("full"))
    gate.fail("/job/train.py:9", OSError("gone"))
    failed = gate.failed
    gate.begin_anew()

    assert (failed, gate.failed) == ("train.py:8: OSError('full')", "")
