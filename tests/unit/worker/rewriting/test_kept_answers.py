"""Answers that are kept between runs: only what this user has kept is read, and it is bounded."""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from recoverrun.worker.rewriting import kept_answers
from recoverrun.worker.rewriting.kept_answers import KeptAnswers, cache_folder
from tests.warm.launchers import LAUNCHERS

ANSWER = {"names": ["fit", "\udc80"], "leading": {"train.py": True}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path / "cache" / "recoverrun"


def _entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_an_answer_is_that_of_its_question_and_subject_alone(folder: Path) -> None:
    KeptAnswers(folder, [b"subject"]).put(ANSWER, b"question")

    assert KeptAnswers(folder, [b"subject"]).get(b"question") == ANSWER
    assert KeptAnswers(folder, [b"subject"]).get(b"quest", b"ion") is None
    assert KeptAnswers(folder, [b"sub", b"ject"]).get(b"question") is None
    assert KeptAnswers(None, [b"subject"]).get(b"question") is None


@pytest.mark.parametrize("what", ["code", "version"])
def test_other_code_or_another_python_finds_no_answer_of_before(
    what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "recoverrun" / "worker" / "analysis" / "facts.py"
    source.parent.mkdir(parents=True)
    source.write_text("one = 1\n")
    monkeypatch.setattr(kept_answers.own_files, "FOLDERS", (f"{tmp_path}/recoverrun/",))
    monkeypatch.setattr(kept_answers, "CODE", ("worker/analysis",))
    forget: Callable[[], None] = kept_answers._of_our_code.cache_clear
    forget()
    KeptAnswers(folder).put(ANSWER, b"question")
    assert KeptAnswers(folder).get(b"question") == ANSWER

    forget()
    if what == "code":
        source.write_text("one = 2\n")
    else:
        monkeypatch.setattr(sys, "version", "3.99")
    found = KeptAnswers(folder).get(b"question")
    forget()

    assert found is None


def test_folder_and_files_are_closed_to_others(folder: Path) -> None:
    KeptAnswers(folder).put(ANSWER, b"question")

    assert folder.stat().st_mode & 0o777 == 0o700
    assert _entry(folder).stat().st_mode & 0o777 == 0o600


def _open_folder(folder: Path) -> None:
    folder.chmod(0o770)


def _open_file(folder: Path) -> None:
    _entry(folder).chmod(0o640)


def _linked_file(folder: Path) -> None:
    path = _entry(folder)
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


def _linked_folder(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def _pipe(folder: Path) -> None:
    path = _entry(folder)
    path.unlink()
    os.mkfifo(path, 0o600)


def _cut_off(folder: Path) -> None:
    path = _entry(folder)
    path.write_bytes(path.read_bytes()[:-1])


def _emptied(folder: Path) -> None:
    _entry(folder).write_bytes(b"")


def _other_byte(folder: Path) -> None:
    path = _entry(folder)
    path.write_bytes(path.read_bytes().replace(b"fit", b"fat"))


@pytest.mark.parametrize(
    "harm",
    [
        _open_folder, _open_file, _linked_file, _linked_folder, _pipe, _cut_off, _emptied,
        _other_byte,
    ],
)  # fmt: skip
def test_what_others_may_have_written_or_is_damaged_is_no_answer(
    harm: Callable[[Path], None], folder: Path
) -> None:
    answers = KeptAnswers(folder)
    answers.put(ANSWER, b"question")

    harm(folder)

    assert answers.get(b"question") is None


def test_what_belongs_to_another_user_is_no_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = KeptAnswers(folder)
    answers.put(ANSWER, b"question")

    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert answers.get(b"question") is None


def test_where_nothing_can_be_kept_nothing_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the place of a folder")

    answers = KeptAnswers(folder)
    answers.put(ANSWER, b"question")

    assert answers.get(b"question") is None


def test_a_python_that_writes_no_bytecode_keeps_nothing_and_reads_what_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptAnswers(folder).put(ANSWER, b"before")

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    KeptAnswers(folder).put(ANSWER, b"question")

    assert KeptAnswers(folder).get(b"question") is None
    assert KeptAnswers(folder).get(b"before") == ANSWER


@pytest.mark.parametrize("limit", ["MOST_ENTRIES", "MOST_BYTES"])
def test_of_too_much_the_older_half_goes(
    limit: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(5):
        KeptAnswers(folder).put(at, b"%d" % at)
        for path in folder.iterdir():  # each is older than the next
            os.utime(path, (path.stat().st_mtime - 10,) * 2)
    size = sum(path.stat().st_size for path in folder.iterdir())

    monkeypatch.setattr(kept_answers, limit, 5 if limit == "MOST_ENTRIES" else size)
    KeptAnswers(folder).put(5, b"5")

    found = [KeptAnswers(folder).get(b"%d" % at) for at in range(6)]
    assert found == [None, None, None, 3, 4, 5]


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/recoverrun"),
        ({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "/h/.cache/recoverrun"),
        ({"HOME": "/h"}, "/h/.cache/recoverrun"),
        ({}, None),
    ],
)
def test_the_folder_is_where_users_have_their_caches(
    environ: dict[str, str], path: str | None
) -> None:
    assert cache_folder(environ) == (None if path is None else Path(path))


@pytest.mark.parametrize("beside_pytest", [False, True])
def test_tests_keep_nothing_in_the_user_s_own_folder(
    beside_pytest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do suites that are commands of their own, such as `python -m tests.compat`."""
    if beside_pytest:
        monkeypatch.delenv("XDG_CACHE_HOME")
    with LAUNCHERS.forked(False) if beside_pytest else nullcontext():
        folder = cache_folder(os.environ)

    assert folder is not None
    assert folder != Path.home() / ".cache" / kept_answers.NAME
    assert ("XDG_CACHE_HOME" in os.environ) is not beside_pytest
