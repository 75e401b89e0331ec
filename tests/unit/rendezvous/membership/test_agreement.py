"""Nodes whose workers would go different ways are told so before any worker begins."""

import pytest

from rendezvous.membership.agreement import disagreement
from rendezvous.membership.formation import Formation, Joined, Reply
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Join, Refusal


def join(incarnation: str, *options: str, role: str = "default", agreement: str = "") -> Join:
    return Join(
        run_id="job", node=f"host-{incarnation}", incarnation=incarnation, node_rank=-1, nproc=2,
        version="1", role=role, options=options, agreement=agreement,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "others", "why"),
    [
        ((), (), ""),
        (("--exact",), ("--exact",), ""),
        (("--exact",), (), "--exact is given here only; all nodes need the same options"),
        ((), ("--exact",), "--exact is given there only; all nodes need the same options"),
        (
            ("--check-finite", "--snapshot-every=5"),
            ("--check-finite", "--snapshot-every=9", "--no-return"),
            "--snapshot-every=5 is given here only, --snapshot-every=9 --no-return is given there "
            "only; all nodes need the same options",
        ),
    ],
)
def test_options_by_which_workers_go_different_ways_are_named(
    mine: tuple[str, ...], others: tuple[str, ...], why: str
) -> None:
    assert disagreement(join("b", *mine), join("a", *others)) == why


def test_nodes_of_another_role_may_have_other_options() -> None:
    assert disagreement(join("b", "--no-protect", role="reader"), join("a")) == ""


def test_whoever_is_decided_for_elsewhere_cannot_take_part() -> None:
    assert "another --etcd" in disagreement(join("b", agreement="other"), join("a"))


def test_a_node_with_other_options_is_refused_and_the_job_waits_for_one_that_fits() -> None:
    formation = Formation(
        nnodes=2, run_id="job", version="1", master_addr="head:1", timeout_s=600.0, begun_at=0.0,
        folder="train/1-1",
    )  # fmt: skip
    formation.step(Joined(join("a", "--exact")), 0.1)
    refused, _ = formation.step(Joined(join("b")), 0.2)

    assert isinstance(refused, Reply) and isinstance(refused.message, Refusal)
    assert refused.incarnation == "b" and refused.message.exit_code == ExitCode.NEVER_FORMED
    assert refused.message.reason == (
        "this node cannot agree with host-a: --exact is given there only; "
        "all nodes need the same options"
    )
    joined = formation.step(Joined(join("c", "--exact")), 0.3)
    assert {one.incarnation for one in joined if isinstance(one, Reply)} == {"a", "c"}
