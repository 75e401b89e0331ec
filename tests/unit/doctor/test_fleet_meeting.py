"""Nodes meet over sockets, as the job would, and all of them get the same table."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recoverrun.config.given_options import Options
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.doctor.fleet_gathering import FleetVerdict
from recoverrun.doctor.fleet_meeting import meet
from recoverrun.doctor.node_examination import examined
from recoverrun.doctor.node_probe import node_facts
from recoverrun.launcher.network.key_lookup import Keyring
from rendezvous.transport.keys import JobKey
from tests.unit.doctor.nodes import node

KEYRING = Keyring(key=JobKey(bytes(32)), origin="key")


def configs(count: int, run_dir: Path, *, numbered: bool = True) -> list[RunConfig]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
    return [
        parse_options(
            Options(
                command=("train.py",),
                nnodes=str(count),
                node_rank=rank if numbered else None,
                rdzv_endpoint=place,
                run_dir=run_dir,
            ),
            {},
        )
        for rank in range(count)
    ]


@pytest.mark.parametrize("numbered", [True, False])
def test_all_nodes_print_one_table(tmp_path: Path, numbered: bool) -> None:
    def take_part(config: RunConfig) -> FleetVerdict | str:
        return meet(config, KEYRING, node(f"gpu-0{config.node_rank}"))

    with ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(take_part, configs(3, tmp_path / "runs", numbered=numbered)))

    assert isinstance(tables[0], FleetVerdict)
    assert len(set(tables)) == 1
    assert tables[0].exit_code == 0
    assert "all 3 came" in tables[0].text
    assert "each node reaches a free port of each other node" in tables[0].text
    assert "all nodes see the same run directory" in tables[0].text
    assert "at one rate" in tables[0].text
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_is_at_work_on_its_facts_keeps_nobody_from_the_meeting_place(
    tmp_path: Path,
) -> None:
    """Nodes of one machine once tried whether the endpoint is free. Two of them at a time took each
    other for a foreign program, and did not come.
    """
    config, *_ = configs(3, tmp_path, numbered=False)
    assert config.endpoint is not None
    with socket.create_server((config.endpoint.host, config.endpoint.port)):
        facts = node_facts(config, {}, script=False, meets=True)

    assert facts.reach == ""
    assert "endpoint" not in [one.check for one in examined(facts)]


def test_a_foreign_program_at_the_endpoint_is_told(tmp_path: Path) -> None:
    """As soon as it says something that no rendezvous says."""
    config = configs(2, tmp_path)[1]
    assert config.endpoint is not None
    with socket.create_server((config.endpoint.host, config.endpoint.port)) as server:

        def greet() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return  # The test is over.
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(64))

        threading.Thread(target=greet, daemon=True).start()
        said = meet(config, KEYRING, node("gpu-01"))
        server.shutdown(socket.SHUT_RDWR)

    assert isinstance(said, str)
    assert "is not a recoverrun rendezvous" in said


def test_a_node_that_finds_nobody_gives_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("recoverrun.doctor.fleet_meeting.WAIT_S", 0.5)
    _, second = configs(2, tmp_path)

    assert meet(second, KEYRING, node()) == ""
