"""The comparison of two witness directories: what it reads, what it says, what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recoverrun.worker.tools.compare_weights import WitnessError, compare, main
from recoverrun.worker.tools.rounding_bound import Course

COURSE = Course(rates=(1e-3, 1e-3), terms=8)

Leave = Callable[..., Path]


@pytest.fixture
def leave(tmp_path: Path) -> Leave:
    def write(name: str, shift: float = 0.0, ranks: tuple[int, ...] = (0, 1)) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        for rank in ranks:
            parameters = {"a": torch.full((3,), 1.0 + rank), "b": torch.zeros(2) + shift}
            torch.save({"parameters": parameters}, directory / f"rank{rank}.pt")
        return directory

    return write


def test_equal_weights_differ_by_nothing(leave: Leave) -> None:
    found = compare(leave("x"), leave("y"), COURSE)

    assert found["max_abs_diff"] == 0.0
    assert found["within"] is True
    assert found["elements"] == 10


def test_the_worst_tensor_stands_first(leave: Leave) -> None:
    found = compare(leave("x"), leave("y", shift=1e-2), COURSE)

    assert found["within"] is False
    assert found["max_abs_diff"] == pytest.approx(1e-2)
    worst = found["worst"]
    assert isinstance(worst, list)
    assert [row["name"] for row in worst] == ["b", "a"]


def test_only_ranks_that_both_runs_have_are_compared(leave: Leave) -> None:
    found = compare(leave("x", ranks=(0, 1, 2, 3)), leave("y", ranks=(1,)), COURSE)

    assert found["ranks"] == [1]


def test_without_a_course_nothing_is_judged(leave: Leave) -> None:
    found = compare(leave("x"), leave("y", shift=1.0), None)

    assert found["bound"] is None
    assert found["within"] is None


def test_without_a_step_after_a_loss_nothing_may_differ(leave: Leave) -> None:
    course = Course(rates=(), terms=8)

    assert compare(leave("x"), leave("y"), course)["within"] is True
    assert compare(leave("z"), leave("w", shift=1e-9), course)["within"] is False


def test_a_run_that_ended_in_nan_is_as_far_away_as_can_be(leave: Leave) -> None:
    found = compare(leave("x"), leave("y", shift=float("nan")), COURSE)

    assert found["within"] is False


@pytest.mark.parametrize("damage", ["absent", "cut", "foreign"])
def test_what_cannot_be_compared_is_refused(damage: str, leave: Leave) -> None:
    x, y = leave("x"), leave("y")
    for path in sorted(y.iterdir()):
        if damage == "absent":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(path.read_bytes()[:100])
        else:
            torch.save([1, 2], path)

    with pytest.raises(WitnessError):
        compare(x, y, COURSE)


def test_the_command_prints_one_json_object(
    leave: Leave, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(leave("x")), str(leave("y")), "--terms", "8", "--rates", "1e-3,5e-4"]

    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["within"] is True
    assert main([arguments[0], str(leave("empty", ranks=()))]) == 2
    assert "no rank" in capsys.readouterr().err
