"""The last words of a worker are shown as they are, and never do harm."""

import json
import os
import time
from pathlib import Path

import pytest

from recoverrun.launcher.node.endings import _age_s
from recoverrun.launcher.output.error_file import (
    LIMIT_BYTES,
    NONE,
    LastWords,
    hand_on,
    last_words,
)
from recoverrun.worker.error_file import write_error_file


def _words(tmp_path: Path, content: object) -> LastWords:
    path = tmp_path / "error.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return last_words(str(path))


def test_torchruns_form_is_read(tmp_path: Path) -> None:
    stack = (
        'Traceback (most recent call last):\n  File "x.py", line 3, in f\n    g()\nValueError: no'
    )
    extra = {"py_callstack": stack, "timestamp": "1"}

    words = _words(tmp_path, {"message": {"message": "ValueError: no", "extraInfo": extra}})

    assert words.error == "ValueError: no"
    assert words.traceback[1:3] == ('  File "x.py", line 3, in f', "    g()")


def test_a_plain_message_is_read(tmp_path: Path) -> None:
    content = {"message": "\n RuntimeError: boom\nmore", "timestamp": "1"}

    assert _words(tmp_path, content) == LastWords("RuntimeError: boom", ())


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    error = _words(tmp_path, {"message": "a\x1b[2Jb\x07c\u202ed" + "x" * 5000}).error

    assert error.isprintable()
    assert len(error) <= 400


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", {"message": None}, {"message": {"message": 3}}, "[" * 100_000],
)
def test_what_is_no_error_file_says_nothing(tmp_path: Path, content: object) -> None:
    assert _words(tmp_path, content) == NONE


def test_a_missing_file_says_nothing() -> None:
    assert last_words("/nowhere/error.json") == NONE


@pytest.mark.parametrize("left", [None, "not json", '{"message": "plain", "timestamp": "1"}'])
def test_whoever_started_the_launcher_is_told_the_cause(tmp_path: Path, left: str | None) -> None:
    source, target = tmp_path / "error.json", tmp_path / "reply.json"
    if left is not None:
        source.write_text(left)

    hand_on(source, str(target), 7, "rank 3 exited with code 7")

    reason = "plain" if left is not None and "plain" in left else "rank 3 exited with code 7"
    assert last_words(str(target)).error == reason


def test_the_root_ranks_file_is_handed_on_with_the_jobs_code(tmp_path: Path) -> None:
    source, target = tmp_path / "error.json", tmp_path / "reply.json"
    source.write_text(json.dumps({"message": {"message": "ValueError: no", "extraInfo": {}}}))

    hand_on(source, str(target), 1, "unused")

    message = json.loads(target.read_text())["message"]
    assert message == {"message": "ValueError: no", "extraInfo": {}, "errorCode": 1}


@pytest.mark.parametrize(
    ("at", "written_at"), [(12.5, 12.5), ("12.5", -1.0), (None, -1.0), (True, -1.0)]
)
def test_when_it_was_written_is_read_from_a_clock_that_nobody_sets(
    tmp_path: Path, at: object, written_at: float
) -> None:
    extra = {"py_callstack": "", "monotonic": at}

    words = _words(tmp_path, {"message": {"message": "E: x", "extraInfo": extra}})

    assert words == LastWords("E: x", (), written_at)


def test_an_error_for_which_there_is_no_room_goes_elsewhere(tmp_path: Path) -> None:
    nowhere, instead = tmp_path / "none" / "error.json", tmp_path / "c0.0.error"

    write_error_file(str(nowhere), OSError(28, "No space left on device"), str(instead))
    write_error_file(str(tmp_path / "error.json"), ValueError("bad"), str(instead))

    assert last_words(str(instead)).error == "OSError: [Errno 28] No space left on device"
    assert last_words(str(tmp_path / "error.json")).error == "ValueError: bad"


def test_an_error_that_cannot_say_what_it_is_is_told_by_its_kind(tmp_path: Path) -> None:
    class Dumb(Exception):
        def __str__(self) -> str:
            raise KeyError("no such message")

    write_error_file(str(tmp_path / "error.json"), Dumb())

    assert last_words(str(tmp_path / "error.json")).error == "Dumb: <exception str() failed>"


def test_the_age_of_an_exception_does_not_follow_the_wall_clock(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    write_error_file(str(path), ValueError("bad"))
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))  # as if the clock had been set since

    assert _age_s(last_words(str(path)), 0.01) < 60.0


@pytest.mark.parametrize("letter", ["y", "\udcff", "\U0001f600"])
def test_an_exception_that_says_very_much_is_named_all_the_same(
    letter: str, tmp_path: Path
) -> None:
    path = tmp_path / "error.json"

    def fails() -> None:
        raise ValueError("boom " + letter * 2_000_000)

    with pytest.raises(ValueError, match="boom") as raised:
        fails()
    write_error_file(str(path), raised.value)

    words = last_words(str(path))
    assert words.error.startswith("ValueError: boom ")
    assert any("in fails" in line for line in words.traceback)
    assert path.stat().st_size < LIMIT_BYTES
