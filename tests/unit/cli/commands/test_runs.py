"""`recoverrun runs` lists runs, and removes old ones when it is told to."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from recoverrun.cli.commands import runs as command
from recoverrun.errors import RecoverrunError
from tests.unit import journals


def _invoke(*words: str) -> Result:
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["runs", *words])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _written(*names: str) -> list[Path]:
    places = [Path("runs/train", name) for name in names]
    for place in places:
        place.mkdir(parents=True)
        journals.clean(place)
    return places


def test_the_list_has_a_line_for_each_run() -> None:
    _written("1", "2")

    lines = _invoke().output.splitlines()

    assert [line.split()[0] for line in lines[1:-1]] == ["train/2", "train/1"]
    assert lines[-1].startswith("2 runs, ")
    told = json.loads(_invoke("--json").output)
    assert [run["verdict"] for run in told["runs"]] == ["completed", "completed"]


def test_without_runs_it_says_so() -> None:
    assert _invoke().output == "there is no run in runs\n"


@pytest.mark.parametrize(
    "words",
    [["--prune"], ["--keep=1"], ["--prune", "--older-than=soon"], ["--prune", "--keep=1"]],
)
def test_pruning_needs_a_rule_and_a_yes(words: list[str]) -> None:
    places = _written("1", "2", "3")

    assert isinstance(_invoke(*words).exception, RecoverrunError)
    assert all(place.exists() for place in places)


def test_all_but_the_newest_of_a_script_are_removed() -> None:
    places = _written("1", "2", "3")

    result = _invoke("--prune", "--keep=1", "--yes")

    assert result.output.startswith("removed 2 runs, ")
    assert [place.exists() for place in places] == [False, False, True]


def test_nothing_is_removed_that_is_younger_than_was_said() -> None:
    places = _written("1")

    assert _invoke("--prune", "--older-than=52000w", "--yes").output == "nothing to remove\n"
    assert places[0].exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 0), ("90s", 90), ("12h", 43200), ("7d", 604800)]
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert command.age(text) == seconds
