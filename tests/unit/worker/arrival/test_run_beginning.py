"""A wall clock that is set while a run goes on does not make its files older than the run."""

from recoverrun.worker.arrival.run_beginning import RunBeginning

BEGAN = 10_000.0


def test_a_clock_that_is_set_back_makes_the_beginning_earlier() -> None:
    began = RunBeginning(BEGAN, wall=BEGAN, mono=50.0)

    assert began.look(wall=BEGAN + 7.0, mono=57.0) == BEGAN
    assert began.look(wall=BEGAN - 3_590.0, mono=60.0) == BEGAN - 3_600.0
    assert began.look(wall=BEGAN + 20.0, mono=70.0) == BEGAN - 3_600.0, "it was so early once"


def test_a_clock_that_is_set_forward_or_corrected_changes_nothing() -> None:
    began = RunBeginning(BEGAN, wall=BEGAN, mono=50.0)

    assert began.look(wall=BEGAN + 3_607.0, mono=57.0) == BEGAN
    assert began.look(wall=BEGAN + 7.5, mono=58.0) == BEGAN


def test_who_came_later_counts_from_when_the_run_began() -> None:
    later = RunBeginning(BEGAN, wall=BEGAN + 500.0, mono=9_000.0)

    assert later.look(wall=BEGAN + 600.0, mono=9_100.0) == BEGAN
    assert later.look(wall=BEGAN + 500.0, mono=9_200.0) == BEGAN - 200.0
