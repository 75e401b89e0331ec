"""The same demands on both ways to agree: the launchers' votes, and a real etcd."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from recoverrun.launcher.network.etcd_client import Etcd
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import Answer, Call, Look, Seen, job_of, witness_of
from rendezvous.consensus.etcd_register import LeasedRegister
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import Admit, Dead, Part, Settled
from tests.conformance.cluster import Backend, Clock, Cluster, Real, Virtual
from tests.conformance.server import MISSING, PROGRAM, EtcdServer, etcd_server
from tests.sim.views.shelf import Shelf

NAMES = ("a", "b", "c")
LAPSED_S = 9.0
"""A lease has lapsed and another launcher leads: with votes 5.4 s at most."""


class Votes:
    perform = None

    def __init__(self) -> None:
        self.clock: Clock = Virtual()

    def register(self, own: str, configuration: Configuration, now: float) -> Register:
        return Register(own=own, configuration=configuration, now=now)

    def first(self, names: tuple[str, ...]) -> Configuration:
        return Configuration(1, 1, names)


class InEtcd:
    """`server` None: the one of the simulator, in its time."""

    def __init__(self, server: EtcdServer | None) -> None:
        self.clock: Clock = Virtual() if server is None else Real()
        self._shelf = Shelf(0, "etcd")
        self._etcd = None if server is None else Etcd([server.endpoint], "conformance")
        self._job = ""

    def perform(self, call: Call) -> Answer:
        if self._etcd is None:
            return self._shelf.perform(call, self.clock.now)
        return self._etcd.perform(call, self._job)

    def register(self, own: str, configuration: Configuration, now: float) -> LeasedRegister:
        return LeasedRegister(own=own, configuration=configuration, now=now)

    def first(self, names: tuple[str, ...]) -> Configuration:
        self._job = f"{names[0]}-{id(self)}"
        return Configuration(1, 1, names, witness_of(self._job))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    if PROGRAM is None:
        pytest.skip(MISSING)
    directory: Path = tmp_path_factory.mktemp("etcd")
    with etcd_server(directory) as server:
        yield server


@pytest.fixture(params=["votes", "simulated etcd", "etcd"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "votes":
        return Votes()
    if request.param == "simulated etcd":
        return InEtcd(None)
    return InEtcd(request.getfixturevalue("server"))


def _declare_dead(cluster: Cluster, *names: str) -> None:
    cluster.still.update(names)
    for name in names:
        cluster.tell_all(Dead(name))


def test_the_founder_leads_and_nobody_takes_over(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)

    cluster.run(6.0)

    assert cluster.leaders == ["a"]
    assert all(node.configuration.number == 1 for node in cluster.nodes.values())
    assert cluster.nodes["a"].leased(cluster.clock.now)


def test_a_configuration_follows_the_one_before_by_one(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)

    cluster.tell_all(Part("c"))
    cluster.run_until(lambda: cluster.all_know("a", "b"), 3.0)

    assert (cluster.newest.number, cluster.newest.term) == (2, 1)


def test_a_lapsed_lease_lets_another_one_take_over(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)

    cluster.still.add("a")
    took_s = cluster.run_until(lambda: cluster.all_know("b", "c"), LAPSED_S)

    assert took_s > 1.5  # Not before it had lapsed.
    assert cluster.newest.term == 2
    assert any(cluster.led_by(name) for name in ("b", "c"))


def test_a_short_standstill_costs_nobody_the_lead(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)

    cluster.still.add("a")
    cluster.run(1.2)
    cluster.still.clear()
    cluster.run(6.0)

    assert cluster.leaders == ["a"]
    assert not cluster.decided


def test_a_death_that_is_proved_is_not_waited_for(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)

    _declare_dead(cluster, "a")
    took_s = cluster.run_until(lambda: cluster.all_know("b", "c"), LAPSED_S)

    assert took_s < 1.5


def test_one_death_after_another_down_to_the_last(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)

    for left in (("b", "c"), ("c",)):
        _declare_dead(cluster, cluster.nodes[left[0]].configuration.leader)
        alive = [name for name in NAMES if name not in cluster.still]
        cluster.run_until(partial(cluster.all_know, *alive), LAPSED_S)
        cluster.run(1.0)

    (last,) = [name for name in NAMES if name not in cluster.still]
    assert cluster.led_by(last)
    assert cluster.newest.term > 2


def test_a_superseded_leader_cannot_decide(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)
    cluster.still.add("a")
    cluster.run_until(lambda: cluster.all_know("b", "c"), LAPSED_S)
    numbers = set(cluster.decided)

    # It wakes with something to decide, behind a link that is broken, and tries.
    cluster.still.clear()
    cluster.apart.add("a")
    cluster.feed("a", Part("c"))
    cluster.run(4.0)
    alone = [
        configuration for number, configuration in cluster.decided.items() if number not in numbers
    ]
    assert not [configuration for configuration in alone if configuration.leader == "a"]

    cluster.apart.clear()
    cluster.run_until(lambda: cluster.nodes["a"].configuration.number >= max(numbers), LAPSED_S)
    assert "a" not in cluster.nodes["a"].configuration.members
    assert not cluster.nodes["a"].leads


def test_a_newcomer_never_brings_the_state(backend: Backend) -> None:
    cluster = Cluster(backend, NAMES)
    cluster.admit("d")
    cluster.tell_all(Admit("d"))
    cluster.run_until(lambda: cluster.all_know(*NAMES, "d"), 3.0)
    assert not cluster.nodes["d"].settled

    _declare_dead(cluster, "a", "b", "c")
    cluster.run(6.0)

    assert "d" not in cluster.leaders
    assert cluster.newest.leader == "a"


def test_a_newcomer_that_has_the_state_may_lead(backend: Backend) -> None:
    cluster = Cluster(backend, ("a", "b"))
    cluster.admit("d")
    cluster.tell_all(Admit("d"))
    cluster.run_until(lambda: cluster.all_know("a", "b", "d"), 3.0)
    cluster.feed("d", Settled())

    _declare_dead(cluster, "a")
    cluster.run_until(lambda: cluster.all_know("b", "d"), LAPSED_S)
    cluster.run(1.0)  # Each change has to be over before the next loss.
    _declare_dead(cluster, "b")
    cluster.run_until(lambda: cluster.all_know("d"), LAPSED_S)

    assert cluster.led_by("d")


def test_what_was_decided_is_read_back_by_whoever_missed_it(backend: Backend) -> None:
    cluster = Cluster(backend, (*NAMES, "d", "e"))
    cluster.apart.add("d")  # It is missed, and left out; another one leaves in the meantime.
    cluster.tell_all(Part("e"))
    cluster.run_until(lambda: cluster.all_know(*NAMES), LAPSED_S)

    cluster.apart.clear()
    cluster.run_until(lambda: cluster.nodes["d"].configuration == cluster.newest, LAPSED_S)

    perform = backend.perform
    if perform is not None:
        seen = perform(Look())
        assert isinstance(seen, Seen) and seen.configuration == cluster.newest
        assert job_of(cluster.newest) == job_of(cluster.nodes["d"].configuration)


def test_many_changes_at_once_are_each_decided_once(backend: Backend) -> None:
    cluster = Cluster(backend, ("a", "b", "c", "d", "e"))
    cluster.still.add("a")
    cluster.tell_all(Part("e"))
    cluster.run(1.0)
    cluster.apart.add("b")
    cluster.run_until(lambda: cluster.nodes["c"].configuration.number > 1, 2 * LAPSED_S)
    cluster.still.clear()
    cluster.apart.clear()

    # Who is in at last depends on who led first; that all agree, and that one leads, does not.
    def settled() -> bool:
        members = cluster.newest.members
        return cluster.all_know(*members) and any(map(cluster.led_by, members))

    cluster.run_until(settled, 2 * LAPSED_S)
    cluster.run(3.0)
    assert settled()
    leading = [name for name, node in cluster.nodes.items() if node.leads]
    assert len(leading) == 1
