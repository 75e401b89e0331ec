"""Rows 3, 4, 26, 28-30, 56, 58, 59 and 62-64: what a user sees, with real launchers."""

import os
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgpack
import psutil
import pytest
import zmq

from rendezvous.protocol import codec
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.transport import sockets
from rendezvous.transport.keys import JobKey, new_text, parse
from rendezvous.transport.station import Station
from tests.e2e.launching import Launch, Launcher, free_port, launching, stranger, two_nodes

pytestmark = pytest.mark.e2e


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with launching(tmp_path) as launcher:
        yield launcher


def _key_file(path: Path) -> str:
    path.write_text(new_text())
    path.chmod(0o600)
    return f"--key-file={path}"


def _forming(launcher: Launcher, port: int, *options: str) -> Launch:
    """Node 0 of a job that waits for node 1."""
    job = launcher.fake("*:exit=0", options=(*two_nodes(port)(0), *options))
    job.expect("2 nodes meet at")
    return job


@pytest.mark.parametrize(
    ("host", "guest", "words"),
    [
        pytest.param("a", "b", "rendezvous key mismatch: .* has another key than", id="row-4"),
        pytest.param("a", "", "demands its key, and this one has none", id="row-3-guest-without"),
        pytest.param("", "a", "has no key, this one has", id="row-3-host-without"),
    ],
)
def test_keys_that_do_not_fit_end_in_a_sentence_within_ten_seconds(
    launcher: Launcher, tmp_path: Path, host: str, guest: str, words: str
) -> None:
    port = free_port()
    files = {name: _key_file(tmp_path / name) for name in "ab"}
    first = _forming(launcher, port, files.get(host, "--key-file=none"))

    began = time.monotonic()
    second = launcher.fake(
        "*:exit=0", options=(*two_nodes(port)(1), files.get(guest, "--key-file=none"))
    )

    assert second.finish() == ExitCode.NEVER_FORMED
    assert time.monotonic() - began < 10
    assert re.search(words, second.output), second.output
    # The first one waits on, and its own second node is welcome.
    third = launcher.fake(
        "*:exit=0", options=(*two_nodes(port)(1), files.get(host, "--key-file=none"))
    )
    assert [first.finish(), third.finish()] == [0, 0]


def test_an_open_job_says_so_once_and_a_keyed_one_says_nothing(
    launcher: Launcher, tmp_path: Path
) -> None:
    for option, lines in (("--key-file=none", 1), (_key_file(tmp_path / "key"), 0), ("", 0)):
        port = free_port()
        options = [(*two_nodes(port)(node), *filter(None, [option])) for node in range(2)]
        jobs = [launcher.fake("*:exit=0", options=each) for each in options]

        assert [job.finish() for job in jobs] == [0, 0]
        output = "".join(job.output for job in jobs)
        assert output.count("no key: whoever reaches this rendezvous") == lines


def test_row_26_another_protocol_is_named_on_both_sides(launcher: Launcher, tmp_path: Path) -> None:
    port = free_port()
    option = _key_file(tmp_path / "key")
    job = _forming(launcher, port, option)
    station = Station(parse((tmp_path / "key").read_bytes()))
    dealer = station.connect_tcp(("127.0.0.1", port))
    foreign = msgpack.packb({"v": codec.PROTOCOL + 1, "k": "Join", "all": "new"})
    answer = None
    until = time.monotonic() + 10
    while answer is None and time.monotonic() < until:
        dealer.send(foreign)
        station.wait(0.05)
        answer = dealer.receive()
    station.close()

    assert answer is not None
    refusal = msgpack.unpackb(answer[-1])
    assert refusal["k"] == "Refusal" and refusal["exit_code"] == 80
    assert "VERSION_MISMATCH" in refusal["reason"]
    assert f"{codec.PROTOCOL + 1}, this one protocol {codec.PROTOCOL}" in refusal["reason"]
    job.expect("VERSION_MISMATCH")
    job.send(signal.SIGTERM)
    assert job.finish() == ExitCode.TERMINATED


def test_row_26_a_launcher_that_meets_another_protocol_leaves_with_both_numbers(
    launcher: Launcher,
) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    job = launcher.fake("*:exit=0", options=(*two_nodes(port)(1), "--key-file=none"))
    assert router.poll(20_000)
    sender, _join = router.recv_multipart()
    other = codec.PROTOCOL + 1
    router.send_multipart([sender, b"who", msgpack.packb({"v": other, "k": "Welcome"})])

    assert job.finish() == ExitCode.NEVER_FORMED
    context.destroy(linger=0)
    both = f"the other side speaks protocol {other}, this one protocol {codec.PROTOCOL}"
    assert f"VERSION_MISMATCH: {both}" in job.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(("--rdzv-id=mine",), "serves run 'none', not 'mine'", id="row-28"),
        pytest.param(
            ("--rdzv-backend=c10d", "--node-rank=0", "--rdzv-conf=is_host=0"),
            "already taken by the launcher on",
            id="row-30",
        ),
    ],
)
def test_whoever_belongs_elsewhere_is_told_what_is_here(
    launcher: Launcher, options: tuple[str, ...], words: str
) -> None:
    port = free_port()
    first = _forming(launcher, port)

    meeting = (*two_nodes(port)(1), f"--rdzv-endpoint=127.0.0.1:{port}")
    other = launcher.fake("*:exit=0", options=(*meeting, *options))

    assert other.finish() in (ExitCode.USAGE, ExitCode.NEVER_FORMED)
    assert words in other.output and "Traceback" not in other.output
    second = launcher.fake("*:exit=0", options=two_nodes(port)(1))
    assert [first.finish(), second.finish()] == [0, 0]


def test_row_29_another_script_under_the_same_name_is_refused(launcher: Launcher) -> None:
    port = free_port()
    first = _forming(launcher, port)
    other = launcher(*two_nodes(port)(1), "--no-python", "/bin/true")

    assert other.finish() == ExitCode.NEVER_FORMED
    assert "another job uses this id, choose an --rdzv-id" in other.output
    second = launcher.fake("*:exit=0", options=two_nodes(port)(1))
    assert [first.finish(), second.finish()] == [0, 0]


def _forms_of(text: str, key: JobKey) -> list[bytes]:
    """Everything that the key is or becomes, in the notations in which it could leak."""
    from base64 import b64encode

    listener = zmq.utils.z85.decode(sockets.listener_public(key))
    forms = [text.encode()]
    for secret in (key.root, key.listener_secret(), listener):
        forms += [secret, secret.hex().encode(), b64encode(secret), zmq.utils.z85.encode(secret)]
    return forms


def test_row_56_the_key_is_in_no_argument_variable_log_or_file(
    launcher: Launcher, tmp_path: Path
) -> None:
    option = _key_file(tmp_path / "key")
    text = (tmp_path / "key").read_text().strip()
    port = free_port()
    jobs = [
        launcher.fake(
            "*:hello hang", options=(*two_nodes(port)(node), option, "--tee=3", "--redirects=3")
        )
        for node in range(2)
    ]
    for job in jobs:
        job.expect("hangs")
    workers = [pid for job in jobs for pid in job.worker_pids().values()]
    shown = {
        f"/proc/{pid}/{name}": Path(f"/proc/{pid}/{name}").read_bytes()
        for pid in [*workers, *(job.pid for job in jobs)]
        for name in ("cmdline", "environ")
    }
    jobs[0].send(signal.SIGTERM)
    for job in jobs:
        job.finish()
        shown[f"output of {job.run_dir}"] = job.output.encode()
    shown |= {
        str(path): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and path != tmp_path / "key"
    }

    assert len(workers) == 2 and len(shown) > 10
    forms = _forms_of(text, parse(text.encode()))
    leaks = [name for name, content in shown.items() if any(form in content for form in forms)]
    assert not leaks


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        pytest.param("no-such.invalid:29400", "no-such.invalid", id="row-58-unresolvable"),
        pytest.param("192.0.2.1:29400", "192.0.2.1:29400", id="row-58-not-ours"),
        pytest.param("localhost:port", "--rdzv-endpoint must be host:port", id="row-58-port"),
        pytest.param("localhost:70000", "there is no port 70000", id="row-58-no-such-port"),
        pytest.param("[::1:29400", "--rdzv-endpoint must be host:port", id="row-58-brackets"),
    ],
)  # fmt: skip
def test_an_endpoint_that_cannot_be_is_one_sentence(
    launcher: Launcher, endpoint: str, words: str
) -> None:
    job = launcher.fake(
        "*:exit=0",
        options=(
            "--nnodes=2", f"--rdzv-endpoint={endpoint}", "--rdzv-backend=c10d",
            "--rdzv-conf=join_timeout=1", "--key-file=none",
        ),
    )  # fmt: skip

    assert job.finish() in (ExitCode.USAGE, ExitCode.NEVER_FORMED)
    assert words in job.output.splitlines()[-1]
    assert "Traceback" not in job.output


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="row-59-http"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="row-59-ssh"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x46", id="row-59-tls"),
    ],
)
@pytest.mark.parametrize("keyed", [True, False])
def test_a_port_of_another_program_is_told_within_three_seconds(
    launcher: Launcher, reply: bytes, keyed: bool
) -> None:
    options = () if keyed else ("--key-file=none",)
    with stranger(reply) as port:
        job = launcher.fake("*:exit=0", options=(*two_nodes(port)(1), *options))
        job.expect("nodes meet at")
        began = time.monotonic()
        assert job.finish() == ExitCode.NEVER_FORMED
        took = time.monotonic() - began

    assert f"what answers at 127.0.0.1:{port} is not a recoverrun rendezvous" in job.output
    assert took < 3


def test_row_63_nobody_to_read_the_output_is_no_reason_to_stop(launcher: Launcher) -> None:
    job = launcher.fake("*:hello say=one set=x get=key exit=0", nproc=1)
    pipe = job._process.stdout
    assert pipe is not None
    # The terminal is gone, and what is written raises SIGPIPE.
    os.close(os.dup(pipe.fileno()))
    job.expect("rank 0: one")

    assert job.finish() == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(n, 128 + n, id=f"row-63-{n.name}")
     for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)],
)  # fmt: skip
def test_signals_end_the_job_with_their_code(
    launcher: Launcher, number: signal.Signals, code: int
) -> None:
    job = launcher.fake("*:hello hang")
    job.expect("hangs")
    job.send(number)

    assert job.finish() == code


@pytest.mark.cold
def test_row_10_a_launcher_may_have_more_connections_than_its_workers(launcher: Launcher) -> None:
    port = free_port()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = len(os.listdir("/proc/self/fd"))  # of this process, which begins them under that limit
    lowered = (min(256 + own, before[1]), before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, lowered)  # Inherited by what is started now.
    try:
        jobs = [launcher.fake("*:hello hang", options=two_nodes(port)(node)) for node in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for job in jobs:
        job.expect("hangs")
    found = [
        [
            resource.prlimit(pid, resource.RLIMIT_NOFILE)
            for pid in (job.pid, *job.worker_pids().values())
        ]
        for job in jobs
    ]
    jobs[0].send(signal.SIGTERM)
    for job in jobs:
        job.finish()

    assert found == [[(before[1], before[1]), lowered]] * 2


def test_row_64_a_job_on_one_node_listens_nowhere(launcher: Launcher) -> None:
    job = launcher.fake("*:hello set=x hang", nproc=2)
    job.expect("hangs")

    processes = [psutil.Process(pid) for pid in (job.pid, *job.worker_pids().values())]
    of_all_kinds = [one for process in processes for one in process.net_connections("all")]
    on_networks = [one for process in processes for one in process.net_connections("inet")]
    job.send(signal.SIGTERM)
    job.finish()

    assert of_all_kinds and not on_networks


def test_row_64_the_store_of_a_job_is_behind_the_key(launcher: Launcher, tmp_path: Path) -> None:
    """Of the ports that a job of two nodes opens, only the endpoint answers, and nothing else."""
    port = free_port()
    options = (_key_file(tmp_path / "key"),)
    jobs = [
        launcher.fake("*:hello set=x hang", options=(*two_nodes(port)(node), *options))
        for node in range(2)
    ]
    for job in jobs:
        job.expect("hangs")
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"\x00" * 200)
        connection.settimeout(10)
        heard = b""
        with suppress(ConnectionError):
            while chunk := connection.recv(4096):
                heard += chunk
    jobs[0].send(signal.SIGTERM)
    for job in jobs:
        job.finish()

    assert len(heard) <= 64 and b"key" not in heard  # ZMTP's greeting, nothing behind it.
