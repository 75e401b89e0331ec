"""Snapshots are taken as often as the user says; by default where there is one replica."""

from pathlib import Path

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.config.snapshot_options import SnapshotOptions
from recoverrun.errors import RecoverrunError
from rendezvous.bays.allowance import Allowance
from rendezvous.protocol.worker_env import UNASKED


def _every(line: str, **environ: str) -> str:
    options = read(line.split(), environ)
    assert options is not None, line
    return parse_options(options, environ).recovery_policy.snapshot_every


@pytest.mark.parametrize(
    ("line", "every"),
    [
        ("x.py", UNASKED),
        ("--nnodes=2 --rdzv-endpoint=a:1 x.py", UNASKED),
        ("--nnodes=1:2 --rdzv-endpoint=a:1 x.py", "0"),
        ("--snapshot-dir kept x.py", "auto"),
        ("--no-protect x.py", "0"),
        ("--no-python x", "0"),
        ("--snapshot-every 12 x.py", "12"),
        ("--snapshot-every=012 x.py", "12"),
        ("--snapshot-every auto x.py", "auto"),
        ("--snapshot-every 0 x.py", "0"),
        ("--snapshot-every 12 --no-protect x.py", "0"),
    ],
)
def test_what_is_meant(line: str, every: str) -> None:
    assert _every(line) == every


@pytest.mark.parametrize("text", ["-1", "1.5", "often", UNASKED, "1e3", "12345678901"])
def test_what_cannot_be_meant(text: str) -> None:
    with pytest.raises(RecoverrunError, match="--snapshot-every must be"):
        _every(f"--snapshot-every={text} x.py")


def test_a_launcher_within_a_worker_does_not_obey_what_that_was_told() -> None:
    inside = {"RECOVERRUN_ENDPOINT": "ipc://x", "RECOVERRUN_SNAPSHOT_EVERY": "3"}

    assert _every("x.py", **inside) == UNASKED
    assert _every("x.py", RECOVERRUN_SNAPSHOT_EVERY="3") == "3"


def _parity(line: str) -> int:
    options = read([*line.split(), "x.py"], {})
    assert options is not None, line
    return parse_options(options, {}).recovery_policy.snapshot_parity


def test_one_node_of_a_group_may_be_lost_unless_the_user_says_otherwise() -> None:
    assert _parity("") == 1
    assert [_parity(f"--snapshot-parity={many}") for many in (0, 1, 2)] == [0, 1, 2]
    with pytest.raises(RecoverrunError, match="--snapshot-parity must be 0, 1 or 2, not 3"):
        _parity("--snapshot-parity=3")


def _disk(line: str) -> SnapshotOptions:
    options = read(line.split(), {})
    assert options is not None, line
    return parse_options(options, {}).snapshots


def test_by_default_nothing_is_written() -> None:
    assert _disk("--snapshot-every 5 x.py") == SnapshotOptions(None, "auto")


def test_a_directory_is_meant_from_here() -> None:
    line = "--snapshot-every 5 --snapshot-dir kept --snapshot-resume must x.py"

    assert _disk(line) == SnapshotOptions(Path.cwd() / "kept", "must")


def test_memory_is_a_share_or_a_size() -> None:
    assert _disk("--snapshot-every 5 --snapshot-memory 25% x.py").memory == Allowance(share=0.25)
    assert _disk("--snapshot-every 5 --snapshot-memory 2G x.py").memory == Allowance(most=2 << 30)


def test_nothing_is_written_without_protection() -> None:
    line = "--no-protect --snapshot-every 5 --snapshot-dir kept x.py"

    assert _disk(line) == SnapshotOptions()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--snapshot-dir kept --snapshot-every 0 x.py", "--snapshot-dir needs snapshots in memory"),
        (
            "--snapshot-dir kept --snapshot-every 00 x.py",
            "--snapshot-dir needs snapshots in memory",
        ),
        ("--snapshot-every 5 --snapshot-resume must x.py", "must needs --snapshot-dir"),
        ("--snapshot-every 5 --snapshot-memory much x.py", "--snapshot-memory must be a size such"),
        ("--snapshot-every 5 --snapshot-resume often x.py", "--snapshot-resume must be one of"),
    ],
)
def test_what_cannot_be_written(line: str, words: str) -> None:
    with pytest.raises(RecoverrunError, match=words) as caught:
        _disk(line)
    assert caught.value.exit_code == 2
