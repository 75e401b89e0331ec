"""Real launchers that agree by a real etcd."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous.protocol.exit_codes import ExitCode
from tests.conformance.server import MISSING, PROGRAM, EtcdServer, etcd_server
from tests.e2e.launching import Launcher, free_port, stranger
from tests.e2e.nodes import Nodes

needs_etcd = pytest.mark.skipif(PROGRAM is None, reason=MISSING)

AT_ONCE_S = 2.5


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    directory = tmp_path / "etcd"
    directory.mkdir()
    with etcd_server(directory) as server:
        yield server


def _nodes(launcher: Launcher, many: int, etcd: EtcdServer) -> Nodes:
    nodes = Nodes(launcher, many, extra=(f"--etcd={etcd.url}", "--rdzv-id=job"))
    nodes.launches[0].expect_record("leader.elect", "(claim ")
    return nodes


@needs_etcd
def test_the_others_go_on_without_the_launcher_that_coordinates(
    launcher: Launcher, etcd: EtcdServer
) -> None:
    nodes = _nodes(launcher, 3, etcd)

    killed_at = time.monotonic()
    nodes.launches[0].send(signal.SIGKILL)
    generation, met_at = nodes.survivors_meet([1, 2])

    assert generation > 1000
    assert met_at - killed_at < AT_ONCE_S  # Its death is proved: nobody waits for its lease.
    nodes.launches[1].send(signal.SIGKILL)
    nodes.survivors_meet([2])
    nodes.stop([2])


@needs_etcd
@pytest.mark.parametrize("lost", [0, 1])
def test_of_two_either_may_be_silent_and_ends_when_it_wakes(
    launcher: Launcher, etcd: EtcdServer, lost: int
) -> None:
    nodes = _nodes(launcher, 2, etcd)

    nodes.stand_still(lost)

    nodes.stop([1 - lost])


@needs_etcd
def test_an_etcd_that_stands_still_stops_nobody_and_decides_later(
    launcher: Launcher, etcd: EtcdServer
) -> None:
    nodes = _nodes(launcher, 3, etcd)
    etcd.send(signal.SIGSTOP)
    try:
        # By then the lease of the leader has run out.
        nodes.launches[0].expect("until etcd answers, no loss can be agreed on: no etcd answers at")
        nodes.launches[2].send(signal.SIGKILL)
    finally:
        etcd.send(signal.SIGCONT)

    nodes.survivors_meet([0, 1])
    nodes.launches[0].expect("etcd answers again")
    nodes.stop([0, 1])


def _refused(launcher: Launcher, coord: str, *more: str) -> tuple[int, str]:
    options = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--etcd={coord}", *more)
    launch = launcher(*options, "--no-python", "true")
    return launch.finish(), launch.output


@pytest.mark.parametrize(
    ("coord", "words"),
    [
        ("zookeeper://h:1", "--etcd must be etcd://HOST:PORT,HOST:PORT, not 'zookeeper://h:1'"),
        ("etcd://", "--etcd must be etcd://HOST:PORT,HOST:PORT, not 'etcd://'"),
        ("127.0.0.1:2379", "--etcd must be etcd://HOST:PORT,HOST:PORT, not '127.0.0.1:2379'"),
        ("etcd://h:99999", "--etcd: there is no port 99999"),
    ],
)
def test_what_is_no_address_of_an_etcd_is_refused(
    launcher: Launcher, coord: str, words: str
) -> None:
    code, output = _refused(launcher, coord)

    assert code == 2
    assert words in output


def test_with_etcd_there_is_no_use_for_a_witness(launcher: Launcher) -> None:
    code, output = _refused(launcher, "etcd://127.0.0.1:1", "--witness=127.0.0.1:2")

    assert code == 2
    assert "--etcd replaces --witness" in output


def test_where_nobody_answers_is_said_at_once(launcher: Launcher) -> None:
    port = free_port()
    code, output = _refused(launcher, f"etcd://127.0.0.1:{port}")

    assert code == ExitCode.NEVER_FORMED
    assert f"--etcd: no etcd answers at 127.0.0.1:{port}: connection refused" in output


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n", "is no etcd of version 3"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "is no etcd of version 3"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "no etcd answers at"),
        (
            b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 63\r\n\r\n"
            b'{"error":"etcdserver: user name is empty","code":3,"message":1}',
            "refuses",
        ),
    ],
)
def test_who_answers_otherwise_is_named(launcher: Launcher, reply: bytes, words: str) -> None:
    with stranger(reply) as port:
        code, output = _refused(launcher, f"etcd://127.0.0.1:{port}")

    assert code == ExitCode.NEVER_FORMED
    assert words in output and f"127.0.0.1:{port}" in output
    assert len(output.strip().splitlines()) <= 3, output


@needs_etcd
def test_an_etcd_with_users_refuses_and_says_why(launcher: Launcher, etcd: EtcdServer) -> None:
    etcd.demand_users()

    code, output = _refused(launcher, etcd.url)

    assert code == ExitCode.NEVER_FORMED
    assert f"etcd at {etcd.endpoint} refuses: " in output
    assert "user name is empty" in output


@needs_etcd
def test_a_node_that_would_agree_otherwise_is_refused(launcher: Launcher, etcd: EtcdServer) -> None:
    options = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job")
    first = launcher(*options, "--node-rank=0", f"--etcd={etcd.url}", "--no-python", "true")
    other = launcher(*options, "--node-rank=1", "--no-python", "true")

    assert other.finish() == ExitCode.NEVER_FORMED
    assert "this node cannot agree with" in other.output
    first.send(signal.SIGTERM)
    assert first.finish() == ExitCode.TERMINATED


@needs_etcd
def test_what_was_decided_can_be_read_by_anybody(launcher: Launcher, etcd: EtcdServer) -> None:
    nodes = _nodes(launcher, 2, etcd)
    nodes.launches[1].send(signal.SIGKILL)
    nodes.survivors_meet([0])

    keys = etcd.keys("/recoverrun/job/")

    assert sorted(os.path.basename(key) for key in keys) == ["leader", "roll"]
    nodes.stop([0])
