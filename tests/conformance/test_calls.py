"""Each call against a real etcd and the simulated one: what it changes, and what guards it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.network.etcd_client import Etcd
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import (
    Answer,
    Call,
    Decide,
    Failed,
    Grant,
    Leased,
    Look,
    Renew,
    Revoke,
    Seen,
    Stand,
)
from tests.conformance.server import MISSING, PROGRAM, EtcdServer, etcd_server
from tests.e2e.launching import free_port
from tests.sim.views.shelf import Shelf

Perform = Callable[[Call], Answer]

FIRST, SECOND = Configuration(1, 1, ("a", "b"), "etcd/a"), Configuration(2, 1, ("a",), "etcd/a")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    if PROGRAM is None:
        pytest.skip(MISSING)
    directory: Path = tmp_path_factory.mktemp("etcd")
    with etcd_server(directory) as server:
        yield server


@pytest.fixture(params=["simulated etcd", "etcd"])
def perform(request: pytest.FixtureRequest) -> Perform:
    if request.param == "simulated etcd":
        shelf = Shelf(0, "etcd")
        return lambda call: shelf.perform(call, 0.0)
    server: EtcdServer = request.getfixturevalue("server")
    etcd = Etcd([server.endpoint], "calls")
    job = f"job-{id(request)}"
    return lambda call: etcd.perform(call, job)


def _lease(perform: Perform) -> int:
    granted = perform(Grant(5))
    assert isinstance(granted, Leased) and granted.ttl_s == 5
    return granted.lease


def _see(perform: Perform, call: Call) -> Seen:
    seen = perform(call)
    assert isinstance(seen, Seen), seen
    return seen


def _leading(perform: Perform) -> Seen:
    seen = _see(perform, Stand(_lease(perform), "a"))
    assert seen.done
    return seen


def test_at_first_there_is_neither_leader_nor_configuration(perform: Perform) -> None:
    seen = _see(perform, Look())

    assert (seen.leader, seen.claim, seen.lease, seen.configuration, seen.revision) == (
        "",
        0,
        0,
        None,
        0,
    )


def test_of_two_that_stand_one_leads_and_both_see_who(perform: Perform) -> None:
    first = _leading(perform)

    second = _see(perform, Stand(_lease(perform), "b"))

    assert not second.done
    assert (second.leader, second.claim, second.lease) == ("a", first.claim, first.lease)


def test_a_configuration_is_decided_by_the_claim_and_the_revision_together(
    perform: Perform,
) -> None:
    leading = _leading(perform)
    decided = _see(perform, Decide(leading.claim, 0, FIRST))
    assert decided.done and decided.configuration == FIRST

    for claim, revision in (
        (leading.claim, 0),
        (leading.claim, decided.revision + 1),
        (leading.claim + 1, decided.revision),
        (0, decided.revision),
    ):
        seen = _see(perform, Decide(claim, revision, SECOND))
        assert not seen.done and seen.configuration == FIRST

    assert _see(perform, Decide(leading.claim, decided.revision, SECOND)).done
    assert _see(perform, Look()).configuration == SECOND


def test_who_has_lost_the_lead_decides_nothing_and_the_next_claim_is_another(
    perform: Perform,
) -> None:
    first = _leading(perform)
    assert perform(Revoke(first.lease)) == Leased(first.lease, 0.0)
    assert _see(perform, Look()).leader == ""

    assert not _see(perform, Decide(first.claim, 0, FIRST)).done
    second = _leading(perform)
    assert second.claim != first.claim
    assert not _see(perform, Decide(first.claim, 0, FIRST)).done
    assert _see(perform, Decide(second.claim, 0, FIRST)).done


def test_a_lease_that_is_over_is_no_error(perform: Perform) -> None:
    lease = _lease(perform)
    assert perform(Renew(lease)) == Leased(lease, 5.0)

    perform(Revoke(lease))

    assert perform(Renew(lease)) == Leased(lease, 0.0)
    assert perform(Revoke(lease)) == Leased(lease, 0.0)


def test_nobody_stands_on_a_lease_that_is_over(perform: Perform) -> None:
    lease = _lease(perform)
    perform(Revoke(lease))

    answer = perform(Stand(lease, "a"))

    assert isinstance(answer, Failed) or not (isinstance(answer, Seen) and answer.done)
    assert _see(perform, Look()).leader == ""


def test_of_several_addresses_one_that_answers_is_enough(server: EtcdServer) -> None:
    nobody = Endpoint(host="127.0.0.1", port=free_port())

    assert isinstance(Etcd([nobody, server.endpoint], "several").perform(Look(), "j"), Seen)
    failed = Etcd([nobody, nobody], "several").perform(Look(), "j")
    assert isinstance(failed, Failed)
    assert failed.reason.count(f"no etcd answers at {nobody}: connection refused") == 2


def test_jobs_of_one_name_have_keys_of_their_own(server: EtcdServer) -> None:
    etcd = Etcd([server.endpoint], "same")
    lease = etcd.perform(Grant(5), "one")
    assert isinstance(lease, Leased)
    etcd.perform(Stand(lease.lease, "a"), "one")

    seen = etcd.perform(Look(), "two")

    assert isinstance(seen, Seen) and seen.leader == ""
