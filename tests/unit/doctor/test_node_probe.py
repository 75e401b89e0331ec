"""The probe tells what is there: ports, directories, torch's version without torch."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from recoverrun.config.given_options import Options
from recoverrun.config.option_values import Endpoint
from recoverrun.config.run_config import parse_options
from recoverrun.doctor.job_checks import address
from recoverrun.doctor.node_probe import node_facts, proxied, reach, stray
from rendezvous.transport.station import Station


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_free_port_of_this_machine_is_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert reach(Endpoint(host="127.0.0.1", port=port)) == "here"


def test_a_port_that_another_program_has_is_taken(busy: int) -> None:
    assert reach(Endpoint(host="127.0.0.1", port=busy)) == "taken"


def test_a_launcher_is_known_by_how_it_introduces_itself() -> None:
    station = Station()
    try:
        port = station.listen_tcp("127.0.0.1", 0).port

        assert reach(Endpoint(host="127.0.0.1", port=port)) == "rendezvous"
    finally:
        station.close()


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("127.0.0.1", ""),
        ("localhost", ""),
        ("192.0.2.7", "is no address of this machine"),
        ("no host", "has no address that is known here"),
    ],
)
def test_an_address_of_another_machine_is_none_of_this_one(host: str, words: str) -> None:
    assert stray(host) == words


def test_an_address_that_a_proxy_stands_before_is_named_with_the_variable() -> None:
    told = {"--notify-url": "https://hooks.example.org/x"}

    assert proxied(told, {"https_proxy": "http://u:p@proxy:3128"}) == ("--notify-url: https_proxy",)
    assert proxied(told, {"http_proxy": "http://proxy:3128"}) == ()
    for outside in ("*", ".example.org", "hooks.example.org,other"):
        assert proxied(told, {"HTTPS_PROXY": "http://proxy", "no_proxy": outside}) == ()


def test_facts_are_gathered_without_torch_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")
    config = parse_options(Options(command=("train.py",), nproc_per_node="2"), {})
    environ = {"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "HTTPS_PROXY": "u:p@h"}

    facts = node_facts(config, {**environ, "HOME": str(tmp_path)}, script=True)

    assert facts.torch.startswith("2.")
    assert facts.worker_server
    assert facts.environ == {"NCCL_DEBUG": "INFO"}
    assert (facts.nproc, len(facts.script_digest)) == (2, 16)
    assert facts.shm_bytes == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize


def test_an_interface_that_is_there_hinders_no_job_of_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = parse_options(Options(command=("train.py",)), {})

    facts = node_facts(config, {"GLOO_SOCKET_IFNAME": "lo"}, script=True)

    assert not [found for found in address(facts) if found.level == "error"]
