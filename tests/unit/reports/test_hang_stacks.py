"""Stacks are read from where launchers leave them, and from nowhere else."""

from pathlib import Path

from recoverrun.reports.hang_stacks import hang_stacks, heading, read_text


def _leave(run_dir: Path, hang: str, name: str, text: str, run: str = "run") -> None:
    (run_dir / "hangs" / hang).mkdir(parents=True, exist_ok=True)
    (run_dir / "hangs" / hang / name).write_text(heading(run) + text)


def test_the_newest_hang_comes_first(tmp_path: Path) -> None:
    _leave(tmp_path, "9", "rank3.stack", "nine")
    _leave(tmp_path, "10", "rank12.stack", "ten b")
    _leave(tmp_path, "10", "rank2.stack", "ten a")

    found = [(one.hang, one.rank, one.text) for one in hang_stacks(tmp_path, run="run")]

    assert found == [(10, 2, "ten a"), (10, 12, "ten b"), (9, 3, "nine")]


def test_stacks_of_another_run_in_the_same_directory_are_not_shown(tmp_path: Path) -> None:
    for hang, run in ((1, "earlier"), (2, "run"), (3, "run2"), (4, "")):
        _leave(tmp_path, str(hang), "rank1.stack", "a stack", run)
    (tmp_path / "hangs" / "2" / "rank2.stack").write_text("a stack of no run")

    assert [(one.hang, one.rank) for one in hang_stacks(tmp_path, run="run")] == [(2, 1)]


def test_links_other_names_and_no_folder_say_nothing(tmp_path: Path) -> None:
    assert hang_stacks(tmp_path, run="run") == ()
    (tmp_path / "secret").write_text("secret")
    _leave(tmp_path, "1", "rank1.txt", "other")
    _leave(tmp_path, "one", "rank1.stack", "other")
    (tmp_path / "hangs" / "1" / "rank4.stack").symlink_to(tmp_path / "secret")

    assert hang_stacks(tmp_path, run="run") == ()


def test_of_a_long_file_its_end_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("begin" + "x" * 100 + "end")

    assert read_text(tmp_path / "log", 3, tail=True) == "end"
    assert read_text(tmp_path / "log", 5) == "begin"


def test_the_thread_that_wrote_the_stacks_is_the_last_of_them(tmp_path: Path) -> None:
    own = (
        'Current thread 0x1 (most recent call first):\n  File "a/worker/step/stack_dump.py", line 1'
    )
    script = 'Thread 0x2 (most recent call first):\n  File "/data.py", line 17 in load'
    _leave(tmp_path, "1", "rank0.stack", f"look 3, pid 7\n{own}\n\n{script}\n")

    (found,) = hang_stacks(tmp_path, run="run")

    assert found.text == f"look 3, pid 7\n{script}\n\n{own}\n"
