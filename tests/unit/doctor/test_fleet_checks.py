"""Checks across nodes: what they must have in common, and what one of them has not."""

from collections.abc import Sequence
from typing import Any

import pytest

from recoverrun.doctor.clock_rate import Rate
from recoverrun.doctor.findings import Finding
from recoverrun.doctor.fleet_checks import Fleet, fleet_findings, folded, named
from recoverrun.doctor.node_facts import NodeFacts
from tests.unit.doctor.nodes import node

NAMES = ("gpu-01", "gpu-02", "gpu-03")


def fleet(
    *nodes: NodeFacts,
    wanted: int = 3,
    offsets: dict[str, float] | None = None,
    rates: dict[str, Rate] | None = None,
    shares: Sequence[bool] = (True, True, True),
    **broken: str,
) -> Fleet:
    """`broken`: callee by caller, both without their `gpu_0`."""
    names = [one.node for one in nodes]
    calls = {one.node: {other.node: "" for other in nodes if other is not one} for one in nodes}
    for caller, callee in broken.items():
        calls[f"gpu-0{caller[1:]}"][f"gpu-0{callee}"] = "silent"
    return Fleet(
        nodes=nodes,
        wanted=wanted,
        offsets_s=offsets or {},
        rates={**dict.fromkeys(names, Rate(0.9999, 1.0001)), **(rates or {})},
        shares=dict(zip(names, shares, strict=False)),
        calls=calls,
        hosts={name: f"10.0.0.{name[-1]}" for name in names},
    )


def wrong(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level != "ok"]


def test_a_healthy_fleet_has_one_line_a_check() -> None:
    found = fleet_findings(fleet(*map(node, NAMES)))

    assert wrong(found) == []
    checks = [one.check for one in found]
    assert len(checks) == len(set(checks))
    assert {"nodes", "ports", "torch", "shm", "clock", "one run dir"} <= set(checks)


def test_a_node_that_did_not_come_is_missed() -> None:
    (found,) = wrong(fleet_findings(fleet(*map(node, NAMES[:2]))))

    assert (found.check, found.level) == ("nodes", "error")
    assert "2 of 3 nodes came: gpu-01, gpu-02" in found.found


def test_a_node_that_met_nobody_says_nothing_of_others() -> None:
    found = fleet_findings(fleet(node("gpu-01"), shares=[True]))

    assert not {"ports", "clock", "one run dir"} & {one.check for one in found}


def test_a_firewall_is_told_with_who_stands_before_and_behind_it() -> None:
    (found,) = wrong(fleet_findings(fleet(*map(node, NAMES), n1="3", n2="3")))

    assert (found.check, found.level) == ("ports", "error")
    assert "gpu-03 (10.0.0.3) is silent from gpu-01, gpu-02" in found.found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "2.12.0"}, "torch differs: 2.13.0 on gpu-01, gpu-02; 2.12.0 on gpu-03"),
        ({"version": "0.2.0"}, "recoverrun differs"),
        ({"script_digest": "ff"}, "script differs"),
    ],
)
def test_nodes_that_differ_are_refused_unless_that_is_meant(
    changes: dict[str, Any], words: str
) -> None:
    odd = node("gpu-03", **changes)
    meant = [
        node("gpu-01", allow_mixed=True),
        node("gpu-02", allow_mixed=True),
        node("gpu-03", allow_mixed=True, **changes),
    ]

    (found,) = wrong(fleet_findings(fleet(node("gpu-01"), node("gpu-02"), odd)))
    (allowed,) = wrong(fleet_findings(fleet(*meant)))

    assert (found.level, allowed.level) == ("error", "warning")
    assert words in found.found


def test_another_patch_of_python_is_no_difference() -> None:
    nodes = [node("gpu-01"), node("gpu-02", python="3.11.9"), node("gpu-03")]

    assert wrong(fleet_findings(fleet(*nodes))) == []


def test_clocks_mislead_people_only() -> None:
    offsets = {"gpu-01": 0.0, "gpu-02": -0.2, "gpu-03": 63.0}

    (found,) = wrong(fleet_findings(fleet(*map(node, NAMES), offsets=offsets)))

    assert (found.check, found.level) == ("clock", "warning")
    assert found.found.endswith("gpu-03 +63.0 s")


def test_what_is_true_of_some_nodes_names_them_and_of_all_names_nobody() -> None:
    some = [node("gpu-01"), node("gpu-02", shm_free_bytes=0), node("gpu-03", shm_free_bytes=0)]
    every = [node(name, key="") for name in NAMES]

    (found,) = wrong(fleet_findings(fleet(*some)))
    (open_,) = wrong(fleet_findings(fleet(*every)))

    assert (found.check, found.nodes) == ("shm", ("gpu-02", "gpu-03"))
    assert (open_.check, open_.nodes) == ("key", ())


def test_a_thousand_nodes_are_no_longer_line() -> None:
    assert named([f"n{i}" for i in range(1000)])[-1] == "992 more"
    assert folded({}) == []


@pytest.mark.parametrize(("bounds", "wrong_"), [
    ((1.02, 1.03), True), ((0.9, 0.98), True), ((0.5, 1.5), False), ((0.995, 1.02), False),
])  # fmt: skip
def test_a_clock_is_wrong_only_if_it_cannot_be_right(
    bounds: tuple[float, float], wrong_: bool
) -> None:
    found = wrong(fleet_findings(fleet(*map(node, NAMES), rates={"gpu-03": Rate(*bounds)})))

    assert [(one.check, one.level) for one in found] == [("clock", "error")] * wrong_
    assert not wrong_ or "gpu-03" in found[0].found


@pytest.mark.parametrize(("shares", "words", "level"), [
    ((True, True, True), "all nodes see the same", "ok"),
    ((True, False, False), "of its own", "ok"),
    ((False, False, False), "of its own", "ok"),
    ((True, True, False), "gpu-03 do not see", "warning"),
])  # fmt: skip
def test_a_run_directory_of_some_nodes_is_told(
    shares: tuple[bool, ...], words: str, level: str
) -> None:
    found = fleet_findings(fleet(*map(node, NAMES), shares=shares))

    (told,) = [one for one in found if one.check == "one run dir"]
    assert words in told.found
    assert told.level == level


def test_gpus_that_differ_are_told() -> None:
    other = node("gpu-03", gpu_words="8 x NVIDIA A100, driver 570.86")

    (found,) = wrong(fleet_findings(fleet(*map(node, NAMES[:2]), other)))

    assert (found.check, found.level) == ("gpu", "warning")
    assert "8 x NVIDIA A100, driver 570.86 on gpu-03" in found.found
