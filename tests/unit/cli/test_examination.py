"""Nodes meet where they can, and a bundle holds what the doctor says."""

import json
from pathlib import Path

import pytest

from recoverrun.cli import examination
from recoverrun.cli.examination import can_meet, for_bundle
from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.doctor.findings import error
from recoverrun.doctor.job_checks import interface
from tests.unit.doctor.nodes import node


def test_nodes_meet_unless_the_way_to_the_others_is_what_is_wrong() -> None:
    bad = [error(check, "", "", "") for check in ("shm", "scheduler", "script")]

    assert can_meet(bad)
    assert can_meet([*bad, *interface(node(environ={"GLOO_SOCKET_IFNAME": "eth7"}))])
    assert not can_meet([*bad, error("endpoint", "", "", "")])


def test_a_doctor_that_cannot_read_the_options_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recoverrun.toml").write_text("no_such_option = 1\n")

    assert "no_such_option" in json.loads(for_bundle())["error"]


@pytest.mark.parametrize(("reach", "named"), [("refused", True), ("here", False)])
def test_a_port_that_is_refused_may_be_closed_by_a_firewall(
    monkeypatch: pytest.MonkeyPatch, reach: str, named: bool
) -> None:
    monkeypatch.setattr(examination, "reach", lambda _: reach)
    options = read("--nnodes 2 --node-rank 1 --rdzv-endpoint gpu-01:29400 train.py".split(), {})
    assert options is not None

    _, found = examination.stayed_alone(parse_options(options, {}), node(), "")

    (alone,) = (one for one in found if one.check == "nodes")
    assert ("if it runs there, open port 29400 to this node" in alone.mend) == named
