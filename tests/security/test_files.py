"""Rows 48-61: files, variables, and what a terminal shows of them."""

import ast
import errno
import os
import re
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network import key_lookup
from recoverrun.launcher.network.key_lookup import find_key
from recoverrun.launcher.output import run_dir
from recoverrun.text import sanitize
from rendezvous.journal import journal_file, writer
from rendezvous.journal.reader import read_run
from rendezvous.protocol.worker_env import EnvError, WorkerEnv
from rendezvous.transport.keys import new_text

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("recoverrun", "rendezvous", "ft_collectives", "templates")
    for path in (ROOT / folder).rglob("*.py")
)


def _calls(tree: ast.AST) -> list[str]:
    return [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""]


# ------------------------------------------------------------------------------- journals, screens


def _good(number: int) -> bytes:
    line = f'{{"v":1,"ts":{number},"mono":{number},"seq":{number},"node":"a","ev":"notice.give"'
    return f'{line},"reason":"r","rank":0}}\n'.encode()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_good(1)[:30], id="row-48-truncated"),
        pytest.param(_good(1)[:30] + _good(1), id="row-48-interleaved"),
        pytest.param(os.urandom(5000) + b"\n", id="row-48-binary"),
        pytest.param(b"\x00" * 4096 + b"\n", id="row-48-hole"),
        pytest.param(b'{"v":1,"ts":NaN,"reason":' + b"[" * 5000 + b"\n", id="row-48-nested"),
    ],
)  # fmt: skip
def test_a_damaged_journal_says_what_is_left_and_what_is_missing(
    tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / "events.a.jsonl").write_bytes(_good(0) + damage + b"\n" + _good(2))

    log = read_run(tmp_path)

    assert [entry.seq for entry in log.entries][0] == 0
    assert [entry.seq for entry in log.entries][-1] == 2
    assert log.unreadable_places >= 1


@pytest.mark.rest
def test_row_48_a_line_without_end_costs_no_memory(tmp_path: Path) -> None:
    with open(tmp_path / "events.a.jsonl", "wb") as file:
        file.write(_good(0))
        file.truncate(1 << 30)  # A gigabyte of nothing, without a newline.
    tracemalloc.start()
    follower = read_run(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(follower.entries) == 1
    assert peak < 16 << 20


HOSTILE = [
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;ZXZpbA==\x07", "\x9b2J", "\x9d52;c;x\x9c", "\u202eabc\u2066", "a\rb\bc", "\x7f",
    "\x00", "[bold]x[/bold]", "[/x]", "[link=http://evil]x[/link]", "\u200b", "\ud800",
    "\U000e0001",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=[f"row-49-{n}" for n in range(len(HOSTILE))])
def test_what_a_worker_writes_is_inert_on_a_terminal(text: str) -> None:
    shown = sanitize(f"before {text} after")
    console = Console(width=200, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(Text(shown), end="")

    printed = capture.get()
    assert printed == shown
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800]", printed)
    assert "before" in printed


def test_row_49_a_line_has_an_end() -> None:
    assert len(sanitize("x" * 10_000_000)) <= 400


# ------------------------------------------------------------------------------- what is read


def test_row_51_nothing_of_ours_loads_a_pickle_or_evaluates_a_text() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in _modules(node)
        }
        assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path
        assert not {"eval", "yaml.load", "msgpack.unpack", "jsonpickle.decode"} & {*_calls(tree)}, (
            path
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert any(keyword.arg == "weights_only" for keyword in node.keywords), path


def test_row_61_no_decision_reads_the_wall_clock() -> None:
    allowed = {
        "recoverrun/launcher/output/recorder.py",  # the journal's stamps, for people
        "recoverrun/launcher/node/endings.py",  # how old an error file is: both stamps are of here
        "recoverrun/launcher/network/journal_desk.py",  # which stacks are of this run, likewise
        "recoverrun/cli/commands/run.py",  # the name of the run directory
        "recoverrun/reports/status_screen.py",  # the age of what is shown
        "recoverrun/reports/postmortem_screen.py",
        "recoverrun/reports/screen_style.py",
        "recoverrun/reports/html_page.py",  # when the run began, for people
        "recoverrun/metrics/exposition.py",  # as of when series are
        "recoverrun/doctor/node_probe.py",  # how far clocks of nodes are apart, for people
        "recoverrun/doctor/fleet_meeting.py",
        "recoverrun/cli/commands/status.py",
        "recoverrun/cli/commands/demo.py",
        "recoverrun/cli/commands/inject.py",
        "recoverrun/reports/run_list.py",  # when a run began, for people
        "recoverrun/cli/commands/runs.py",  # how old a run is that a user wants removed
    }
    wall = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "time.gmtime"}
    found = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if "worker" not in path.parts and wall & {*_calls(ast.parse(path.read_text()))}
    }

    assert found <= allowed


# ------------------------------------------------------------------------------- directories


def test_row_52_a_run_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")

    with pytest.raises(RecoverrunError, match="is a link or no directory") as refusal:
        run_dir.make_run_dir(tmp_path / "link", "x", "y")
    assert refusal.value.exit_code == 2


def test_row_52_a_run_directory_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(RecoverrunError, match="open to other users; chmod 700"):
        run_dir.make_run_dir(tmp_path / "open", "x", "y")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_row_52_a_run_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)

    with pytest.raises(RecoverrunError, match="belongs to another user"):
        run_dir.make_run_dir(tmp_path / "theirs", "x", "y")


def test_row_53_names_in_folders_of_all_are_not_predictable_and_never_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "SHARED_MEMORY", tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    (tmp_path / f"{run_dir.PREFIX}planted").symlink_to(elsewhere)

    first, second = run_dir.make_private_dir(), run_dir.make_private_dir()

    assert first.path.name != second.path.name
    assert all(p.path.stat().st_mode & 0o777 == 0o700 for p in (first, second))
    assert (elsewhere / "precious").exists()
    first.remove()
    second.remove()


@pytest.mark.parametrize("planted", ["open", "link"])
def test_row_53_a_planted_directory_for_runs_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_dir, "_can_hold_runs", lambda: False)
    guessed = tmp_path / f"runs-{os.geteuid()}"
    (tmp_path / "evil").mkdir()
    if planted == "open":
        guessed.mkdir()
        guessed.chmod(0o777)
    else:
        guessed.symlink_to("evil")

    made = run_dir.make_run_dir(None, "train", "1-1")

    assert guessed not in made.parents
    assert made.parents[1].stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "evil").iterdir()) == []
    guessed.unlink() if planted == "link" else guessed.rmdir()
    assert run_dir.make_run_dir(None, "train", "1-1").parents[1] == guessed


def test_row_53_a_planted_directory_for_the_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "recoverrun").symlink_to("real")

    with pytest.raises(RecoverrunError, match="is a link"):
        find_key(_config(), {"XDG_STATE_HOME": str(tmp_path)})


def test_row_60_no_room_at_the_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "run"))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(RecoverrunError, match="No space left on device"):
        run_dir.make_run_dir(tmp_path / "run", "x", "y")


def test_row_60_no_room_later_is_counted_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = writer.Journal(tmp_path / "events.a.jsonl", "a", 0.0)
    record = writer.Record("notice.give", "words", {"rank": 0})

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "write", full)
        for _ in range(1000):
            book.append(record, mono=0.0, wall=0.0)
        assert book.flush(30.0)
    book.append(record, mono=1.0, wall=1.0)
    book.close(30.0)

    events = [(e.event, e.integer("records")) for e in read_run(tmp_path).entries]
    assert events == [("journal.drop", 1000), ("notice.give", -1)]


# ------------------------------------------------------------------------------- key files


def _config(*options: str) -> RunConfig:
    found = read(["--nnodes=2", *options, "train.py"], {})
    assert found is not None
    return parse_options(found, {})


def _file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        pytest.param(new_text().encode(), 0o644, r"mode 0644\); chmod 600 ", id="row-55-0644"),
        pytest.param(new_text().encode(), 0o620, r"mode 0620\); chmod 600 ", id="row-55-0620"),
        pytest.param(b"", 0o600, "is empty; recoverrun keygen", id="row-55-empty"),
        pytest.param(b"\n \n", 0o600, "is empty", id="row-55-blank"),
        pytest.param(os.urandom(64) + b"\xff", 0o600, "plain text", id="row-55-binary"),
        pytest.param(b"secret", 0o600, "has 6 characters", id="row-55-short"),
        pytest.param(b"x" * (64 << 20), 0o600, "more than 1024", id="row-55-huge"),
    ],
)
def test_a_key_file_that_is_not_safe_is_refused_with_what_to_do(
    tmp_path: Path, content: bytes, mode: int, words: str
) -> None:
    path = _file(tmp_path / "key", content, mode)

    with pytest.raises(RecoverrunError, match=words) as refusal:
        find_key(_config(f"--key-file={path}"), {})
    assert refusal.value.exit_code == 2 and str(path) in str(refusal.value)
    assert content.strip()[:16] not in str(refusal.value).encode() or not content.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_row_55_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "key", new_text().encode())
    os.chown(path, 12345, 12345)

    with pytest.raises(RecoverrunError, match="belongs to another user"):
        find_key(_config(f"--key-file={path}"), {})


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo"])
def test_row_55_a_key_file_that_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path, 0o600)

    with pytest.raises(RecoverrunError, match="cannot be read|is no file"):
        find_key(_config(f"--key-file={path}"), {})


def test_row_55_the_key_that_is_made_by_itself_is_checked_like_any_other(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    (tmp_path / "recoverrun").mkdir(mode=0o700)
    path = _file(tmp_path / "recoverrun" / key_lookup.HOST, new_text().encode(), 0o644)

    with pytest.raises(RecoverrunError, match="chmod 600"):
        find_key(_config("--rdzv-endpoint=127.0.0.1"), state)
    path.chmod(0o600)
    assert find_key(_config("--rdzv-endpoint=127.0.0.1"), state).key is not None


# ------------------------------------------------------------------------------- variables

GARBAGE = ["x", "-1", "1e9", "\u0663", "9" * 400, "0x10", "\x00"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, id=f"row-57-{name}-{number}")
        for name in ("RECOVERRUN_MIN_REPLICAS", "RECOVERRUN_NNODES", "RECOVERRUN_MAX_RESTARTS")
        for number, text in enumerate(GARBAGE)
        if (name, text) != ("RECOVERRUN_NNODES", "\u0663")  # A three, for torchrun too.
    ],
)
def test_a_variable_that_cannot_be_meant_is_a_usage_error(name: str, text: str) -> None:
    with pytest.raises(RecoverrunError) as refusal:
        found = read(["train.py"], {name: text})
        assert found is not None
        parse_options(found, {name: text})

    assert refusal.value.exit_code == 2
    option = name.removeprefix("RECOVERRUN_").lower().replace("_", "-")
    assert name in str(refusal.value) or option in str(refusal.value)


@pytest.mark.parametrize("text", GARBAGE, ids=[f"row-57-{n}" for n in range(len(GARBAGE))])
def test_a_worker_names_the_variable_that_it_cannot_read(text: str) -> None:
    with pytest.raises(EnvError, match="RECOVERRUN_INCARNATION|is not set"):
        WorkerEnv.from_environ({"RECOVERRUN_ENDPOINT": "ipc://x", "RECOVERRUN_INCARNATION": text})
