"""Run directories are the user's own, and what a killed launcher left is removed."""

import errno
import os
from pathlib import Path

import pytest

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.output import run_dir
from rendezvous.journal.run_number import run_number
from rendezvous.protocol.shared_memory import FILE_BYTES


def test_a_run_has_a_directory_of_its_own_and_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    first = run_dir.make_run_dir(None, "train", "1-1")
    second = run_dir.make_run_dir(None, "train", "1-2")

    assert first == tmp_path / "runs/train/1-1"
    assert second.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "runs/train/latest").resolve() == second


def test_runs_below_the_folder_are_counted_whoever_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [
        run_dir.make_run_dir(place, "train", "1-1")
        for place in (None, Path("runs/mine"), Path("elsewhere"))
    ]

    assert [run_number(place, tmp_path / "runs") for place in made] == [1, 2, 0]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(RecoverrunError, match=f"no run directory .*: {tmp_path}/file is no dir"):
        run_dir.make_run_dir(tmp_path / "file" / "run", "train", "1-1")


def test_two_runs_of_one_moment_have_two_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    names = [run_dir.make_run_dir(None, "train", "1-1").name for _ in range(3)]

    assert names == ["1-1", "1-1-2", "1-1-3"]


def test_where_the_working_directory_can_have_none_it_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    found = run_dir.make_run_dir(None, "train", "1-1")

    assert found == tmp_path / f"tmp/runs-{os.geteuid()}/train/1-1"


def test_a_directory_that_is_given_may_exist(tmp_path: Path) -> None:
    assert run_dir.make_run_dir(tmp_path / "a/b", "x", "y") == tmp_path / "a/b"
    assert run_dir.make_run_dir(tmp_path / "a/b", "x", "y") == tmp_path / "a/b"
    assert not (tmp_path / "a/latest").exists()


def test_a_directory_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(RecoverrunError, match="no run directory|not"):
            run_dir.make_run_dir(path, "x", "y")


def test_only_directories_without_a_living_launcher_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "SHARED_MEMORY", tmp_path)
    living = run_dir.make_private_dir()
    stale = tmp_path / f"{run_dir.PREFIX}stale"
    stale.mkdir()
    (stale / "c0.0").write_text("x")

    another = run_dir.make_private_dir()

    assert living.path.exists() and another.path.exists()
    assert not stale.exists()
    assert living.path.stat().st_mode & 0o777 == 0o700
    living.remove()
    another.remove()
    assert os.listdir(tmp_path) == []


def test_a_path_too_long_for_a_socket_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(run_dir, "SHARED_MEMORY", long)

    private = run_dir.make_private_dir()

    assert len(private.socket.encode()) <= run_dir.SOCKET_PATH_BYTES
    assert os.listdir(long) == []
    private.remove()


def test_shared_memory_without_room_for_all_workers_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "SHARED_MEMORY", tmp_path)
    facts = os.statvfs(tmp_path)
    fitting = facts.f_bavail * facts.f_frsize // FILE_BYTES // 2

    private = run_dir.make_private_dir(fitting)
    assert private.path.parent == tmp_path
    private.remove()
    monkeypatch.setattr(run_dir, "_room_bytes", lambda base: 0 if base == tmp_path else 1 << 40)
    private = run_dir.make_private_dir(fitting)

    assert private.path.parent != tmp_path
    private.remove()


def test_a_directory_for_secrets_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "a/private"
    os.close(run_dir.open_private(path))
    assert path.stat().st_mode & 0o777 == 0o700

    path.chmod(0o750)
    with pytest.raises(run_dir.NotPrivate, match="chmod 700"):
        run_dir.open_private(path)


def test_a_new_file_appears_whole_and_only_once(tmp_path: Path) -> None:
    folder = run_dir.open_private(tmp_path / "private")
    run_dir.write_new(folder, "key", b"first")
    run_dir.write_new(folder, "key", b"second")
    os.close(folder)

    assert (tmp_path / "private/key").read_bytes() == b"first"
    assert (tmp_path / "private/key").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "private") == ["key"]


def test_a_directory_without_room_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_dir.os, "write", full)
    with pytest.raises(RecoverrunError, match="has no room: No space left on device") as refusal:
        run_dir.make_run_dir(tmp_path / "run", "x", "y")

    assert refusal.value.exit_code == 2
    assert not list((tmp_path / "run").iterdir())


def test_without_any_folder_for_temporary_files_the_other_places_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", _none)
    monkeypatch.setattr(run_dir, "SHARED_MEMORY", tmp_path)

    private = run_dir.make_private_dir()

    assert private.path.parent == tmp_path
    private.remove()


def test_where_no_directory_can_be_made_at_all_the_option_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.gettempdir", _none)

    with pytest.raises(RecoverrunError, match="--run-dir"):
        run_dir.make_run_dir(None, "train", "1-1")


def _none() -> str:
    raise FileNotFoundError("No usable temporary directory found")
