"""First lines of a script that are executed again leave what the run has written."""

import builtins
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recoverrun.worker.arrival.kept_files import KeptFiles

BEFORE, AFTER = 1_000.0, 3_000.0


@pytest.fixture
def files() -> Iterator[KeptFiles]:
    """Of a run that began between BEFORE and AFTER."""
    former = (
        builtins.open, io.open, os.open, os.remove, os.unlink, os.rename, os.replace, os.mkdir,
        os.symlink, shutil.rmtree, torch.save,
    )  # fmt: skip
    files = KeptFiles(2_000.0)
    files.guard()
    yield files
    files.release()
    assert former == (
        builtins.open, io.open, os.open, os.remove, os.unlink, os.rename, os.replace, os.mkdir,
        os.symlink, shutil.rmtree, torch.save,
    )  # fmt: skip


def written(path: Path, at: float, text: str = "theirs\n") -> Path:
    """As others have written it: whoever is asked to keep files does not know."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


@pytest.fixture
def young(tmp_path: Path) -> Path:
    """A file of the run, made before `files` looks on."""
    return written(tmp_path / "out" / "young.txt", AFTER)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return written(tmp_path / "before" / "old.txt", BEFORE)


def test_a_log_of_the_run_goes_on(young: Path, files: KeptFiles) -> None:
    log = open(young, "w", buffering=1)
    log.write("header\n")
    before = young.read_text()
    files.release()
    log.write("a line\n")
    log.close()

    assert (before, young.read_text()) == ("theirs\n", "theirs\na line\n")
    assert [*files.kept] == [str(young)]


def test_what_its_first_lines_append_to_a_log_of_the_run_is_there_already(
    young: Path, old: Path, files: KeptFiles
) -> None:
    """Also what lies between two phases of training, of which the first one is passed over."""
    log = open(young, "a", buffering=1)
    log.write("phase 0 is over\n")
    with old.open("a") as history:
        history.write("started again\n")
    files.release()
    log.write("a line\n")
    log.close()

    assert young.read_text() == "theirs\na line\n"
    assert old.read_text() == "theirs\nstarted again\n"
    assert [*files.kept] == [str(young)]


def test_what_is_appended_and_read_is_opened_as_ever(young: Path, files: KeptFiles) -> None:
    with open(young, "a+") as log:
        log.seek(0)

        assert log.read() == "theirs\n"


def test_what_was_written_and_not_yet_flushed_is_dropped_too(young: Path, files: KeptFiles) -> None:
    with young.open("wb") as log:
        log.write(b"header")
        files.release()
        log.write(b"mine")

    assert young.read_bytes() == b"theirs\nmine"


def test_a_file_that_is_closed_again_is_as_it_was(young: Path, files: KeptFiles) -> None:
    young.write_text("anew")
    torch.save({}, young)

    assert young.read_text() == "theirs\n"


def test_a_file_from_before_the_run_is_written_anew(old: Path, files: KeptFiles) -> None:
    with open(old, "w") as file:
        file.write("mine")
    once = old.read_text()
    old.write_text("twice")  # its own by now

    assert (once, old.read_text()) == ("mine", "twice")
    old.unlink()
    assert not old.exists() and not files.kept


def test_a_file_of_the_run_is_not_removed_and_may_be_made_again(
    young: Path, files: KeptFiles
) -> None:
    os.remove(young)
    young.unlink()
    with open(young, "x") as file:
        file.write("mine")

    assert young.read_text() == "theirs\n"


def test_a_folder_with_files_of_the_run_stays_and_may_be_made_again(
    young: Path, files: KeptFiles
) -> None:
    folder = young.parent
    inner = written(folder / "deep" / "older.txt", BEFORE).parent

    shutil.rmtree(folder)
    os.makedirs(inner)

    assert young.read_text() == "theirs\n" and (inner / "older.txt").exists()


def test_a_folder_without_files_of_the_run_is_removed(old: Path, files: KeptFiles) -> None:
    shutil.rmtree(old.parent)

    assert not old.parent.exists() and not files.kept


def test_what_others_have_is_not_moved_or_replaced(
    young: Path, tmp_path: Path, files: KeptFiles
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")

    os.rename(young, young.with_suffix(".1"))
    os.replace(mine, young)

    assert young.read_text() == "theirs\n" and os.listdir(young.parent) == ["young.txt"]
    assert not mine.exists()


def test_a_link_of_the_run_stays(young: Path, files: KeptFiles) -> None:
    link = young.with_name("latest")
    link.symlink_to(young)
    files.release()
    files = KeptFiles(2_000.0)
    files.guard()

    link.unlink()
    link.symlink_to("elsewhere")
    files.release()

    assert link.readlink() == young


def test_what_this_process_made_is_its_own(tmp_path: Path, files: KeptFiles) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as name:
        own = Path(name, "deep", "file")
        own.parent.mkdir()
        own.write_text("once")
        own.write_text("twice")
        torch.save({}, own.with_name("a"))
        torch.save({"more": 1}, own.with_name("a"))
        more = torch.load(own.with_name("a"))
        fd, made = tempfile.mkstemp(dir=tmp_path)
        os.close(fd)
        os.remove(made)

        assert own.read_text() == "twice" and more

    assert not os.listdir(tmp_path) and not files.kept


def test_what_is_no_file_is_opened_as_ever(tmp_path: Path, files: KeptFiles) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with open(tmp_path / "fifo", "w") as pipe, open(os.devnull, "w") as nowhere:
        pipe.write("mine")
        nowhere.write("mine")

    assert os.read(reader, 10) == b"mine"
    os.close(reader)


def test_a_call_that_fails_fails_as_ever(young: Path, files: KeptFiles) -> None:
    with pytest.raises(FileExistsError):
        open(young, "x").close()
    with pytest.raises(FileNotFoundError):
        os.remove(young.with_name("none"))
    with pytest.raises(TypeError):
        os.remove(None)  # type: ignore[arg-type]


def test_with_its_place_taken_a_process_writes_as_ever(young: Path, files: KeptFiles) -> None:
    kept = os.remove
    files.release()

    young.write_text("mine")
    text = young.read_text()
    kept(young)

    assert text == "mine" and not young.exists()
