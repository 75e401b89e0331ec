"""Nodes meet over sockets, as the job would, and all of them get the same table."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from recoverrun.config.run_config import Options, RunConfig, parse_options
from recoverrun.doctor.fleet_gathering import Verdict
from recoverrun.doctor.fleet_meeting import meet
from recoverrun.launcher.network.key_lookup import Keyring
from rendezvous.transport.keys import JobKey
from tests.unit.doctor.nodes import node

KEYRING = Keyring(key=JobKey(bytes(32)), origin="key")


def configs(count: int) -> list[RunConfig]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
    return [
        parse_options(
            Options(command=("train.py",), nnodes=str(count), node_rank=rank, rdzv_endpoint=place),
            {},
        )
        for rank in range(count)
    ]


def test_all_nodes_print_one_table() -> None:
    def take_part(config: RunConfig) -> Verdict | None:
        return meet(config, KEYRING, node(f"gpu-0{config.node_rank}"))

    with ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(take_part, configs(3)))

    assert tables[0] is not None
    assert len(set(tables)) == 1
    assert tables[0].exit_code == 0
    assert "all 3 came" in tables[0].text
    assert "each node reaches a free port of each other node" in tables[0].text


def test_a_node_that_finds_nobody_gives_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("recoverrun.doctor.fleet_meeting.WAIT_S", 0.5)
    _, second = configs(2)

    assert meet(replace(second, run_dir=tmp_path), KEYRING, node()) is None
