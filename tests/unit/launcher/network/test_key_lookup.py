"""A key is used if it is found and safe, and a job says what holds without one."""

import os
import stat
from pathlib import Path

import pytest

from recoverrun.cli.commands.keygen import make_key
from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network import key_lookup
from recoverrun.launcher.network.key_lookup import find_key
from rendezvous.transport.keys import parse


def _config(*options: str) -> RunConfig:
    found = read([*options, "train.py"], {})
    assert found is not None
    return parse_options(found, {})


def _remote(*options: str) -> RunConfig:
    return _config("--nnodes=2", "--rdzv-endpoint=192.0.2.1:29400", *options)


def _homes(path: Path) -> dict[str, str]:
    return {"HOME": str(path)}


@pytest.fixture(autouse=True)
def _no_mounted_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(key_lookup, "MOUNTED", tmp_path / "mounted")


def test_one_node_needs_no_key_and_makes_none(tmp_path: Path) -> None:
    assert find_key(_config(), _homes(tmp_path)).key is None
    assert os.listdir(tmp_path) == []


def test_launchers_of_one_machine_find_the_same_key(tmp_path: Path) -> None:
    local = _config("--nnodes=2", "--rdzv-endpoint=127.0.0.1:29400")
    first, second = (find_key(local, _homes(tmp_path)) for _ in range(2))

    assert first.key == second.key and first.key is not None
    assert not first.note
    path = Path(first.origin)
    assert path == tmp_path / ".local/state/recoverrun/host.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["host.key"]


def test_an_address_of_ipv6_can_be_a_loopback_too(tmp_path: Path) -> None:
    local = _config("--nnodes=2", "--rdzv-endpoint=[::1]:29400")

    assert find_key(local, _homes(tmp_path)).key is not None


def test_several_machines_without_a_key_run_and_say_so(tmp_path: Path) -> None:
    found = find_key(_remote(), _homes(tmp_path))

    assert found.key is None
    assert "no key" in found.note and "recoverrun keygen" in found.note


def test_no_home_is_no_reason_not_to_run() -> None:
    found = find_key(_config("--nnodes=2", "--rdzv-endpoint=localhost"), {})

    assert found.key is None and "no home directory" in found.note


def test_a_key_that_is_required_is_missed(tmp_path: Path) -> None:
    for options in ((), ("--key-file=none",)):
        with pytest.raises(RecoverrunError, match="--key-required") as refusal:
            find_key(_remote("--key-required", *options), _homes(tmp_path))
        assert refusal.value.exit_code == 2


def test_the_order_of_the_sources(tmp_path: Path) -> None:
    given, own = tmp_path / "given", tmp_path / ".config/recoverrun/key"
    for path in (given, own, key_lookup.MOUNTED):
        make_key(path)
    home = _homes(tmp_path)

    assert find_key(_remote(f"--key-file={given}"), home).origin == str(given)
    assert find_key(_remote(), home).origin == str(key_lookup.MOUNTED)
    key_lookup.MOUNTED.unlink()
    assert find_key(_remote(), home).origin == str(own)
    assert find_key(_remote("--key-file=none"), home).key is None


def test_keygen_makes_a_key_that_is_used_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "a/key"
    make_key(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert find_key(_remote(f"--key-file={path}"), {}).key == parse(path.read_bytes())
    with pytest.raises(RecoverrunError, match="there already"):
        make_key(path)


def test_a_zeromq_without_encryption_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookup, "can_encrypt", lambda: False)
    make_key(tmp_path / "key")

    local = find_key(_config("--nnodes=2", "--rdzv-endpoint=127.0.0.1"), _homes(tmp_path))
    assert local.key is None and "built without encryption" in local.note
    with pytest.raises(RecoverrunError, match="install pyzmq from PyPI, or use --key-file none"):
        find_key(_remote(f"--key-file={tmp_path / 'key'}"), {})


def test_a_mounted_secret_may_be_a_link_and_of_root(tmp_path: Path) -> None:
    make_key(tmp_path / "..data")
    key_lookup.MOUNTED.symlink_to("..data")

    assert find_key(_remote(), {}).key is not None
