"""`recoverrun doctor` where something is really wrong: limits, disks, the network, keys.

Each case says what was found, and what mends it.
"""

import json
import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.chaos.net import Net, net
from tests.e2e.launching import ROOT, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(300)]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")
WITHIN_S = 200.0

LITTLE_SHM = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=4m x /dev/shm && exec "$0" "$@"')
READ_ONLY = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro x disk && exec "$0" "$@"')
ELSEWHERE = ("--nnodes=2", "--rdzv-endpoint=10.9.9.9:29400", "--alone", "--key-file=none")
"""A job at an address of nobody's."""


@contextmanager
def doctor(
    folder: Path,
    *options: str,
    within: tuple[str, ...] = (),
    env: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[bytes]]:
    """`recoverrun doctor --json` with options of a run; `within` runs it somewhere else."""
    (folder / "train.py").write_text("print()\n")
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("RECOVERRUN_", "PET_"))}
    with subprocess.Popen(
        [*within, sys.executable, "-m", "recoverrun", "doctor", "--json", *options, "train.py"],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The object that it prints as it ends, with the exit code that is in there."""
    text, _ = process.communicate(timeout=WITHIN_S)
    found: dict[str, Any] = json.loads(text)
    assert process.returncode == found["exit_code"]
    return found


def errors(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in found["findings"] if one["level"] == "error"]


@pytest.mark.parametrize(
    ("within", "options", "check", "words", "mend"),
    [
        pytest.param(
            ("prlimit", "--nofile=20:20"), (), "limits", "20 open files", "--ulimit nofile",
            id="few open files",
        ),
        pytest.param(
            LITTLE_SHM, (), "shm", "4.0 MiB free of 4.0 MiB", "--shm-size",
            id="little shared memory", marks=needs_root,
        ),
        pytest.param(
            READ_ONLY, ("--run-dir=disk/runs",), "run dir", "read-only file system", "--run-dir",
            id="a read-only disk", marks=needs_root,
        ),
        pytest.param(
            ("unshare", "-n"), ELSEWHERE, "address", "no route to 10.9.9.9:29400", "--local-addr",
            id="no way to the others", marks=needs_root,
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_node_is_named_with_what_mends_it(
    tmp_path: Path,
    within: tuple[str, ...],
    options: tuple[str, ...],
    check: str,
    words: str,
    mend: str,
) -> None:
    (tmp_path / "disk").mkdir()

    with doctor(tmp_path, *options, within=within) as process:
        (wrong,) = errors(told(process))

    assert wrong["check"] == check
    assert words in wrong["found"]
    assert mend in wrong["mend"]


@needs_root
def test_nodes_that_cannot_call_each_other_are_named_on_every_node(tmp_path: Path) -> None:
    """Both reach the first node, which is all that they need to meet there."""
    with net(3, f"dr{os.getpid()}") as hosts:
        hosts.isolate(1, 2)
        tables = fleet(tmp_path, hosts)

    for table in tables:
        assert table["findings"] == tables[0]["findings"]
        assert {one["check"] for one in errors(table)} == {"ports"}
        assert "open all ports above 1024" in errors(table)[0]["mend"]
    names = {one["route"]: one["node"] for one in tables[0]["nodes"]}
    one, other = (f"{names[hosts.host(at)]} ({hosts.host(at)})" for at in (1, 2))
    assert {wrong["found"] for wrong in errors(tables[0])} == {
        f"a free port of {one} is silent from {names[hosts.host(2)]}",
        f"a free port of {other} is silent from {names[hosts.host(1)]}",
    }


def fleet(folder: Path, hosts: Net) -> list[dict[str, Any]]:
    """Return the output of the doctors of three hosts, that of the first one first."""
    options = ("--nnodes=3", f"--rdzv-endpoint={hosts.host(0)}:29400", "--key-file=none")
    with (
        doctor(folder, *options, within=hosts.within(0)) as first,
        doctor(folder, *options, within=hosts.within(1)) as second,
        doctor(folder, *options, within=hosts.within(2)) as third,
    ):
        return [told(process) for process in (first, second, third)]


def test_a_node_with_another_key_says_so(tmp_path: Path) -> None:
    for name in ("one.key", "other.key"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(secrets.token_hex(32))
    where = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    with (
        doctor(tmp_path, *where, "--key-file=one.key") as one,
        doctor(tmp_path, *where, "--key-file=other.key") as other,
    ):
        # Whoever gathers would wait for the other one for a minute.
        ready, _, _ = select.select([one.stdout, other.stdout], [], [], WITHIN_S)
        (wrong,) = errors(told(one if one.stdout in ready else other))

    assert "rendezvous key mismatch" in wrong["found"]
    assert "--key-file" in wrong["found"]


FAST = "import time; true = time.monotonic; time.monotonic = lambda: 2 * true()"


def test_a_clock_that_was_set_wrong_is_named_with_by_how_much(tmp_path: Path) -> None:
    ahead = tmp_path / "ahead"
    ahead.write_text("3600")
    clock = os.pathsep.join([str(ROOT), str(ROOT / "tests/chaos/clock")])

    table = second_with(tmp_path, {"PYTHONPATH": clock, "CHAOS_CLOCK": str(ahead)})

    (wrong,) = (one for one in table["findings"] if one["check"] == "clock")
    assert wrong["level"] == "warning" and table["exit_code"] == 0
    offset_s = float(wrong["found"].split()[-2])
    assert 3590 < offset_s < 3610, wrong["found"]


def test_a_clock_that_goes_too_fast_is_an_error(tmp_path: Path) -> None:
    """Twice as fast: a busy machine widens the bounds, and they must still say so."""
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast/sitecustomize.py").write_text(FAST)
    clock = os.pathsep.join([str(ROOT), str(tmp_path / "fast")])

    table = second_with(tmp_path, {"PYTHONPATH": clock})

    (wrong,) = errors(table)
    assert wrong["check"] == "clock" and "clocks go at another rate" in wrong["found"]


def second_with(folder: Path, env: dict[str, str]) -> dict[str, Any]:
    """Return the table of two nodes on this host, the second with `env`."""
    options = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--key-file=none")
    with (
        doctor(folder, *options, "--node-rank=0") as first,
        doctor(folder, *options, "--node-rank=1", env=env) as second,
    ):
        tables = [told(process) for process in (first, second)]
    assert tables[0]["findings"] == tables[1]["findings"]
    return tables[0]


@pytest.fixture
def service() -> Iterator[Path]:
    """A control group that is named as systemd names that of a service."""
    for where in ("pids", "."):
        made = Path("/sys/fs/cgroup") / where / f"recoverrun-{os.getpid()}.service"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            yield made
        finally:
            made.rmdir()
        return
    pytest.skip("no control group can be made here")


@needs_root
def test_the_policy_of_the_service_in_which_it_runs_is_asked_for(
    service: Path, tmp_path: Path
) -> None:
    """systemd itself does not run here: a program in the place of its own answers."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(f"#!/bin/sh\n[ $5 = {service.name} ] && echo stop\n")
    (programs / "systemctl").chmod(0o755)
    enter = ("sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(service))
    path = os.pathsep.join([str(programs), os.environ["PATH"]])

    with doctor(tmp_path, within=enter, env={"PATH": path}) as process:
        table = told(process)

    (found,) = (one for one in table["findings"] if one["check"] == "scheduler")
    assert found["level"] == "warning" and "OOMPolicy=stop" in found["found"]
