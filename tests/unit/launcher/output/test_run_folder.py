"""The directory of a run has one name on all nodes, which is agreed on when the job forms."""

from pathlib import Path

import pytest

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.output.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_launchers_on_one_file_system_have_one_directory(tmp_path: Path) -> None:
    first, second = (RunFolder(None, "train", f"1-{pid}") for pid in (1, 2))

    second.agree(first.name)
    first.agree(first.name)

    assert first.path == second.path == tmp_path / "runs/train/1-1"
    assert sorted(path.name for path in (tmp_path / "runs/train").iterdir()) == ["1-1", "latest"]


def test_nothing_is_made_before_the_name_is_known(tmp_path: Path) -> None:
    RunFolder(None, "train", "1-1")

    assert not list((tmp_path / "runs/train").iterdir())


def test_without_an_agreement_each_has_its_own(tmp_path: Path) -> None:
    folders = []
    for _ in range(2):
        folders.append(RunFolder(None, "train", "1-1"))
        assert folders[-1].path.is_dir()

    assert [folder.name for folder in folders] == ["train/1-1", "train/1-1-2"]


def test_a_directory_that_the_user_names_is_not_another_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "mine", "train", "1-1")

    folder.agree("train/9-9")

    assert (folder.path, folder.name) == (tmp_path / "mine", "train/9-9")


def test_what_was_made_stays(tmp_path: Path) -> None:
    folder = RunFolder(None, "train", "1-1")
    before = folder.path

    folder.agree("train/9-9")

    assert folder.path == before


def test_a_directory_that_the_user_names_is_another_job_s_for_as_long_as_that_runs(
    tmp_path: Path,
) -> None:
    first, mate, second = (RunFolder(tmp_path / "mine", "train", f"1-{pid}") for pid in (1, 2, 3))
    mate.agree(first.name)

    for _ in range(2):
        first.claim()
        mate.claim()
    with pytest.raises(RecoverrunError, match="give this one a --run-dir of its own"):
        second.claim()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "train",
        "../x",
        "x/..",
        "/etc/x",
        "train/latest",
        "a/b/c",
        "train/\n",
        "train/.x",
        "x/" + "y" * 200,
    ],
)
def test_another_launcher_names_no_path_of_its_choice(tmp_path: Path, name: str) -> None:
    folder = RunFolder(None, "train", "1-1")

    folder.agree(name)

    assert folder.path == tmp_path / "runs/train/1-1"


def test_where_no_directory_can_be_made_that_is_said_before_the_job_forms(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/train").write_text("in the way")

    with pytest.raises(RecoverrunError, match="no run directory"):
        RunFolder(None, "train", "1-1")
