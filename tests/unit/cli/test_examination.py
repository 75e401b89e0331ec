"""Nodes meet where they can, and a bundle holds what the doctor says."""

import json
from pathlib import Path

import pytest

from recoverrun.cli.examination import can_meet, for_bundle
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
