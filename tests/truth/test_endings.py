"""Runs that go wrong by themselves: they end as they would under torchrun, in good time.

A sample that ends whoever looks at it ends no more than it must.
"""

from pathlib import Path

import pytest

from tests.truth.case import Case
from tests.truth.runs import Left, apart, ours, story, under_torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

PATIENCE_S = 60.0
"""What a run gets for what torchrun does in seconds."""


def test_a_rank_that_reduces_once_too_often_ends_the_run(tmp_path: Path) -> None:
    case = Case(name="A5", script="halves.py", arguments=("twice",))
    expected = under_torchrun(case, tmp_path / "torchrun")
    assert expected.code not in (0, None), "torchrun sees that it goes wrong"

    left, trial = ours(case, tmp_path / "ours", within_s=PATIENCE_S)

    assert left.code != 0, story(left, trial)
    assert "rank 0" in left.output and "rank 1" in left.output, story(left, trial)


@pytest.mark.parametrize(
    "case",
    [
        Case(name="A5", script="halves.py", arguments=("once",)),
        Case(name="A6", script="budget.py", arguments=("later",)),
    ],
    ids=lambda case: f"{case.name}-{case.arguments[0]}",
)
def test_unequal_microbatches_are_torchruns_run_and_unprotected_from_there_on(
    case: Case, tmp_path: Path
) -> None:
    expected = under_torchrun(case, tmp_path / "torchrun")
    assert expected.code == 0, expected.output

    left, trial = ours(case, tmp_path / "ours", within_s=PATIENCE_S)

    assert left.code == 0, story(left, trial)
    assert not any(apart(left.weights[rank], expected.weights[rank]) for rank in (0, 1))
    assert (
        "not protected, a loss ends this run: the script's ranks take unequally many" in left.output
    )
    assert "rank 0" in left.output and "rank 1" in left.output, story(left, trial)


@pytest.mark.parametrize(("way", "ranks"), [("ddp", 2), ("fsdp1", 4), ("fsdp2", 2)])
def test_a_lost_rank_that_would_take_more_microbatches_is_told(
    way: str, ranks: int, tmp_path: Path
) -> None:
    case = Case(name="A6", script="counts.py", arguments=(way,), ranks=ranks)
    inject = f"r{ranks - 1}@step:3:forward"

    left, trial = ours(case, tmp_path / "ours", inject, within_s=PATIENCE_S)

    assert left.code == 0, story(left, trial)
    assert "takes another number of microbatches" in trial.weakened, story(left, trial)


def test_the_scripts_own_limit_of_time_holds(tmp_path: Path) -> None:
    """Its error, or before it a loss: a rank that is proved to hang is lost like any other."""
    limit_s = 5
    case = Case(name="A7", script="limit.py", arguments=(str(limit_s),))
    expected = under_torchrun(case, tmp_path / "torchrun")
    assert expected.code not in (0, None), expected.output

    left, trial = ours(case, tmp_path / "ours", within_s=PATIENCE_S)

    if left.code == 0:
        assert "rank 1 hangs, at limit.py:24" in left.output, story(left, trial)
        assert "from here on equal-count" in left.output, story(left, trial)
        assert "1 loss survived" in left.output, story(left, trial)
    assert left.wall_s < expected.wall_s + 4 * limit_s, story(left, trial)


# ------------------------------------------------------------------------------- one bad sample


def _survivors(left: Left) -> list[int]:
    """Ranks that came to the end, all with the same weights."""
    assert not any(apart(left.weights[min(left.weights)], one) for one in left.weights.values())
    return sorted(left.weights)


@pytest.mark.parametrize("way", [pytest.param("exit", marks=pytest.mark.quick), "hard", "quiet"])
def test_code_that_ends_a_process_ends_only_the_rank_that_ran_it_for_itself(
    way: str, tmp_path: Path
) -> None:
    case = Case(name="C3", script="fatal.py", arguments=(way,), ranks=3)

    left, trial = ours(case, tmp_path, ends=True)

    assert left.code == 0, story(left, trial)
    assert _survivors(left) == [0, 2], story(left, trial)
    assert [loss.ranks for loss in trial.history.losses] == [(1,)], "whatever code it ended with"
    assert trial.weakened, "its microbatch was made up with another one"
    assert "fatal.py:" in trial.weakened, "where it ends"


@pytest.mark.parametrize("way", ["fault", "crash", "late"])
def test_a_microbatch_kills_once(way: str, tmp_path: Path) -> None:
    case = Case(name="C3", script="fatal.py", arguments=(way,), ranks=3)

    left, trial = ours(case, tmp_path, ends=True)

    assert left.code == 0, story(left, trial)
    assert _survivors(left) == [0, 2], story(left, trial)
    assert trial.weakened, "its microbatch was made up with another one"
    assert "fatal.py:" in trial.weakened, "where it ends"


@pytest.mark.parametrize("way", ["crash", pytest.param("sleep", marks=pytest.mark.matrix)])
def test_the_last_replica_of_several_ranks_survives_it_too(way: str, tmp_path: Path) -> None:
    case = Case(name="C3", script="fatal.py", arguments=(way, "shards"), ranks=4)

    left, trial = ours(case, tmp_path, within_s=150, ends=True)

    assert left.code == 0, story(left, trial)
    assert sorted(left.weights) == [2, 3], story(left, trial)
    assert [loss.ranks for loss in trial.history.losses] == [(0, 1)], story(left, trial)
    assert "is not executed again: " in trial.weakened, story(left, trial)


@pytest.mark.matrix  # it waits out the time that an execution may take
@pytest.mark.parametrize("way", ["lock", "deaf"])
def test_code_that_waits_for_ever_is_not_waited_for(way: str, tmp_path: Path) -> None:
    case = Case(name="C3", script="fatal.py", arguments=(way,), ranks=3)

    left, trial = ours(case, tmp_path, inject="r1@step:5:forward", within_s=150)

    assert left.code == 0, story(left, trial)
    assert len(_survivors(left)) == {"lock": 2, "deaf": 1}[way], story(left, trial)
    assert trial.weakened, "its microbatch was made up with another one"
    assert "fatal.py:" in trial.weakened, "where it ends"
