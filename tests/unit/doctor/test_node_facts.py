"""Facts travel as JSON; what comes from a peer is believed field by field, or not at all."""

import json

import pytest

from recoverrun.doctor.node_facts import ITEMS_MOST, TEXT_MOST, as_json, from_json
from tests.unit.doctor.nodes import node


def test_facts_arrive_as_they_were_told() -> None:
    facts = node(environ={"NCCL_DEBUG": "INFO"})

    assert from_json(as_json(facts)) == facts


def test_what_a_newer_peer_tells_besides_is_left_out() -> None:
    raw = {**json.loads(as_json(node())), "temperature": 80}

    assert from_json(json.dumps(raw).encode()) == node()


@pytest.mark.parametrize(
    "changes",
    [
        {"node": 7},
        {"nproc": "8"},
        {"nproc": 1.5},
        {"nproc": True},
        {"nproc": 10**30},
        {"fsync_ms": float("nan")},
        {"oom_group": 1},
        {"interfaces": "eth0"},
        {"interfaces": [1]},
        {"environ": {"A": 1}},
        {"environ": ["A"]},
        {"reach": "yes"},
        {"reach": []},
    ],
)
def test_a_field_of_another_type_is_refused(changes: dict[str, object]) -> None:
    raw = {**json.loads(as_json(node())), **changes}

    with pytest.raises(ValueError):
        from_json(json.dumps(raw).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"7", b"\xff", b"{"])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        from_json(text)


def test_what_is_too_long_is_cut() -> None:
    raw = {**json.loads(as_json(node())), "node": "x" * 9999, "interfaces": ["e"] * 999}

    facts = from_json(json.dumps(raw).encode())

    assert (len(facts.node), len(facts.interfaces)) == (TEXT_MOST, ITEMS_MOST)
