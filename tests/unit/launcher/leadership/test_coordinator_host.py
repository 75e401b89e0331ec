"""The coordinator host: machines composed, and nobody speaks for another."""

import pytest

from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from recoverrun.launcher.leadership.first_failure import ACROSS_S
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.coordinator.coordinator import Coordinator
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Formation
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Beat, Join, Refusal, Start
from rendezvous.protocol.messages import (
    Committed,
    Exited,
    Farewell,
    Hello,
    Message,
    Stop,
    Topology,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.register_messages import Ping
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.protocol.views import View
from tests.unit.coordination import verdict
from tests.unit.stores import lone_store


class Job:
    """Two nodes of two ranks each: "own" has the coordinator host, "far" does not."""

    def __init__(self, *, joined: bool = True) -> None:
        self.records: list[Record] = []
        formation = Formation(
            nnodes=2,
            run_id="job",
            version="1",
            master_addr="h:1",
            timeout_s=600.0,
            begun_at=0.0,
        )
        self.coordinator_host = CoordinatorHost(
            formation=formation, own="own", policy=USUAL, record=self.records.append,
            store=lone_store(), flapping_nodes=FlappingNodes(),
        )  # fmt: skip
        self.join("own", 0)
        if joined:
            self.envelopes = self.join("far", 1)

    def join(
        self, incarnation: str, node_rank: int, sender: str = "", now: float = 0.0
    ) -> list[Envelope]:
        join = Join(
            run_id="job",
            node=incarnation,
            incarnation=incarnation,
            node_rank=node_rank,
            nproc=2,
            version="1",
        )
        return self.coordinator_host.receive(sender or incarnation, join, now)

    def send(self, sender: str, message: Message, now: float = 0.1) -> list[Envelope]:
        return self.coordinator_host.receive(sender, message, now)

    def learn(self) -> None:
        replicas = ((0,), (1,), (2,), (3,))
        for rank in range(4):
            node = "own" if rank < 2 else "far"
            self.send(node, Topology(rank=rank, generation=1, strategy="fake", replicas=replicas))
        for rank in range(4):
            self.send("own" if rank < 2 else "far", verdict(rank))


def _hello(rank: int) -> Hello:
    return Hello(rank=rank, incarnation=0, pid=1, torch="none")


def _exited(rank: int, code: int, *, ours: bool = False) -> Exited:
    return Exited(
        rank=rank, incarnation=0, node="n", code=code, ours=ours, error="", detected_s=0.0
    )


def _get(rank: int, generation: int) -> StoreCall:
    return StoreCall(
        rank=rank,
        serial=1,
        generation=generation,
        op="get",
        keys=("k",),
        values=(),
        amount=0,
        timeout_s=60.0,
    )


def _stops(envelopes: list[Envelope]) -> dict[str, Stop]:
    return {
        envelope.to: envelope.message
        for envelope in envelopes
        if isinstance(envelope.message, Stop)
    }


def test_the_job_starts_on_all_nodes_when_the_last_one_joins() -> None:
    job = Job()

    starts = {p.to: p.message for p in job.envelopes if isinstance(p.message, Start)}

    assert (starts["own"].first_rank, starts["far"].first_rank) == (0, 2)
    assert [r.fields["name"] for r in job.records] == ["own", "far"]


def test_a_join_in_the_name_of_another_is_ignored() -> None:
    job = Job(joined=False)

    assert job.join("far", 1, sender="stranger") == []
    assert any(isinstance(p.message, Start) for p in job.join("far", 1))


def test_answers_go_to_the_node_that_hosts_the_rank() -> None:
    job = Job()

    (envelope,) = job.send("far", _hello(3))

    assert (envelope.to, envelope.rank) == ("far", 3)
    assert isinstance(envelope.message, View)


@pytest.mark.parametrize("sender", ["own", "stranger"])
def test_nobody_speaks_for_the_ranks_of_another(sender: str) -> None:
    job = Job()

    assert job.send(sender, _exited(3, 1)) == []
    assert job.send(sender, _get(3, 0)) == []


def test_a_failure_before_the_topology_stops_all_nodes_with_one_code() -> None:
    job = Job()

    told = job.send("far", _exited(2, 7))

    stops = _stops([*told, *job.coordinator_host.tick(0.1 + ACROSS_S)])
    assert {node: stop.exit_code for node, stop in stops.items()} == {"own": 7, "far": 7}
    assert job.send("own", _exited(0, 1)) == []


def test_whoever_waits_in_the_old_store_is_let_go_before_the_new_view() -> None:
    job = Job()
    job.learn()
    job.send("own", _get(0, 1))
    job.send("own", _get(1, 0))

    envelopes = job.send("far", _exited(3, -9))

    kinds = [type(envelope.message) for envelope in envelopes if envelope.rank == 0]
    assert kinds[0] is StoreAnswer and View in kinds
    assert StoreAnswer not in [
        type(envelope.message) for envelope in envelopes if envelope.rank == 1
    ]


def test_a_silent_node_is_lost_and_its_return_is_refused() -> None:
    job = Job()
    job.learn()
    now = 2.5
    envelopes = job.coordinator_host.depart([("far", "its launcher was silent for too long")], now)

    assert {envelope.to for envelope in envelopes} == {"own"}
    assert [r.fields["ranks"] for r in job.records if r.event == "node.lost"] == [[2, 3]]
    (back,) = job.send("far", Beat(node="far", incarnation="far"), now)
    assert isinstance(back.message, Stop) and back.message.exit_code == ExitCode.PARTITIONED


@pytest.mark.parametrize(
    "beat",
    [Beat(node="far", incarnation="far"), Ping(number=1, sent_at=6.0, undecided=False)],
    ids=lambda beat: type(beat).__name__,
)
def test_a_sign_of_life_keeps_a_node_and_a_late_one_gets_the_stop_again(beat: Message) -> None:
    job = Job()
    for tenth in range(1, 60):  # It is the launchers together that judge a silence.
        assert job.coordinator_host.tick(tenth / 10) == []

    job.coordinator_host.stop(Stop(exit_code=ExitCode.TERMINATED, reason="user", root_rank=-1))

    assert not job.coordinator_host.settled
    (again,) = job.send("far", beat, 6.0)
    assert isinstance(again.message, Stop) and again.message.exit_code == ExitCode.TERMINATED
    assert job.send("far", again.message, 6.0) == []
    assert job.coordinator_host.settled
    assert job.send("far", beat, 6.1) == []


def test_a_node_that_dies_while_the_job_ends_is_not_waited_for() -> None:
    job = Job()
    job.coordinator_host.stop(Stop(exit_code=ExitCode.TERMINATED, reason="user", root_rank=-1))

    assert job.coordinator_host.depart([("far", "its launcher has ended")], 3.0) == []

    assert job.coordinator_host.settled


def test_a_user_may_stop_the_job_on_any_node() -> None:
    job = Job()

    envelopes = job.send("far", Stop(exit_code=ExitCode.INTERRUPTED, reason="SIGINT", root_rank=-1))

    assert set(_stops(envelopes)) == {"own", "far"}
    assert job.coordinator_host.deadline() is None or job.coordinator_host.deadline() > 0.1


def test_a_job_that_is_stopped_while_it_forms_refuses_who_waits() -> None:
    job = Job(joined=False)
    far = Join(run_id="job", node="f", incarnation="far", node_rank=-1, nproc=0, version="1")

    (refused,) = job.send("far", far)
    envelopes = job.coordinator_host.stop(
        Stop(exit_code=ExitCode.INTERRUPTED, reason="SIGINT", root_rank=-1)
    )

    assert isinstance(refused.message, Refusal) and refused.rank == NOBODY
    assert envelopes == []  # nobody but ourselves was waiting


def test_the_end_of_all_ranks_is_the_end_of_the_job() -> None:
    job = Job()
    envelopes: list[Envelope] = []
    for rank in range(4):
        node = "own" if rank < 2 else "far"
        job.send(node, Farewell(rank=rank, generation=1, step=3))
        envelopes = job.send(node, _exited(rank, 0))

    assert {stop.exit_code for stop in _stops(envelopes).values()} == {0}


def test_an_invariant_that_breaks_ends_the_job_with_85(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("INV-1: 17 > 16")

    job = Job()
    monkeypatch.setattr(Coordinator, "check", broken)

    stops = _stops(job.send("own", _hello(0)))

    assert {stop.exit_code for stop in stops.values()} == {ExitCode.INVARIANT}
    assert job.records[-1].event == "invariant.break"
    assert job.records[-1].fields["invariant"] == "INV-1"


def test_steps_after_a_stop_are_recorded_of_the_launchers_that_host_their_ranks() -> None:
    job = Job()
    job.learn()
    job.send("own", Stop(exit_code=ExitCode.TERMINATED, reason="asked", root_rank=-1))
    done = {rank: Committed(rank=rank, generation=1, step=0, done=((rank, 0),), redone=(),
                            total=4, digest="") for rank in range(4)}  # fmt: skip
    before = len(job.records)

    for rank in (0, 1, 2):
        job.send("own" if rank < 2 else "far", done[rank])
    job.send("own", done[3])  # not its own to tell
    told = [record.event for record in job.records[before:]]
    job.coordinator_host.close(0.2)

    assert told == []
    assert [record.event for record in job.records[before:]] == ["step.commit"]
    assert job.records[-1].fields["unseen"] == [3]


def test_a_launcher_without_a_place_has_no_steps_to_tell_of_after_a_stop() -> None:
    """Between attempts: its workers of the one before may still commit."""
    job = Job(joined=False)
    job.coordinator_host.stop(Stop(exit_code=ExitCode.INTERRUPTED, reason="SIGINT", root_rank=-1))
    before = len(job.records)

    late = Committed(rank=0, generation=1, step=0, done=(), redone=(), total=1, digest="")
    job.send("own", late)

    assert len(job.records) == before
