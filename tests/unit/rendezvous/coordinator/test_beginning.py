"""When recovery can help, and what a loss before that means to the coordinator."""

from dataclasses import replace

from rendezvous.coordinator.beginning import DEATH_WAIT_S
from rendezvous.coordinator.coordinator import Coordinator, NodeLost, Resumed
from rendezvous.protocol.effects import Effect, StopJob
from rendezvous.protocol.messages import Committed, PeerFault, Stop
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.unit.coordination import PAIRS, Job, told, verdict


def _applied(rank: int, step: int) -> Committed:
    return Committed(rank=rank, generation=1, step=step, done=((rank, 0),), redone=(), total=3,
                     digest="")  # fmt: skip


def _stop(effects: list[Effect]) -> Stop:
    (stop,) = (effect.stop for effect in effects if isinstance(effect, StopJob))
    return stop


def _records(effects: list[Effect]) -> list[str]:
    return [effect.event for effect in effects if isinstance(effect, Record)]


def test_a_job_starts_until_the_last_rank_has_promised() -> None:
    job = Job(begun=False)
    job.tell(verdict(0), verdict(2))
    assert (job.machine.starting, job.machine.protected) == (True, False)

    job.tell(verdict(1))

    assert (job.machine.starting, job.machine.protected) == (False, True)


def test_one_replica_and_an_unknown_topology_start_nothing() -> None:
    assert not Job(((0, 1),), begun=False).machine.starting
    assert not Coordinator(world=(0, 1)).starting


def test_a_loss_before_the_survivors_have_promised_stops_the_attempt() -> None:
    job = Job(begun=False)
    job.tell(verdict(0), verdict(1))

    effects = job.end(1)

    assert _stop(effects).exit_code == 137
    assert told(effects, View) == {} and job.machine.starting


def test_the_last_that_had_not_promised_is_lost_like_any_other() -> None:
    job = Job(PAIRS, begun=False)
    job.tell(*(verdict(rank) for rank in (0, 1, 4, 5)))

    effects = job.end(3)

    assert job.machine.view.live == (0, 2)
    assert "promise.state" in _records(effects)


def test_nodes_of_all_that_had_not_promised_are_lost_together() -> None:
    job = Job(begun=False)
    job.tell(verdict(2))

    job.feed(NodeLost(node="a", ranks=(0, 1), reason="silent"))

    assert job.machine.view.live == (2,)


def test_a_step_in_which_all_voted_is_proof_that_all_have_begun() -> None:
    torchs, voted = Job(begun=False), Job(begun=False)
    torchs.tell(_applied(1, step=0))
    voted.tell(_applied(1, step=1))

    assert _stop(torchs.end(2)).exit_code == 137
    assert "replica.lost" in _records(voted.end(2))


def test_a_hint_from_before_all_had_promised_is_heeded_when_it_is_said_again() -> None:
    job = Job(begun=False)
    hint = PeerFault(rank=1, generation=1, reason="reset")
    early = job.tell(hint)

    job.tell(*(verdict(rank) for rank in range(3)))
    effects = job.tell(hint)

    assert (_records(early), _records(effects)) == (["fault.hint"], ["view.change"])
    assert job.machine.generation == 2


def test_a_hint_while_starting_waits_for_a_death_and_then_stops_the_attempt() -> None:
    job = Job(begun=False)
    hint = PeerFault(rank=1, generation=1, reason="reset")
    job.now = 5.0
    job.tell(hint)

    job.now = 5.0 + DEATH_WAIT_S - 0.1
    assert job.tell(replace(hint, rank=2)) == []
    job.now = 5.0 + DEATH_WAIT_S
    stop = _stop(job.tell(hint))

    assert (stop.exit_code, stop.root_rank) == (1, -1)
    assert stop.reason == "rank 1: reset"


def test_a_hint_of_a_job_that_is_not_protected_stops_nothing() -> None:
    job = Job(begun=False)
    job.tell(verdict(0, "unprotected"))
    hint = PeerFault(rank=1, generation=1, reason="reset")

    effects = job.tell(hint)
    job.now = 2 * DEATH_WAIT_S
    effects += job.tell(hint)

    assert _records(effects) == ["fault.hint"]
    assert job.machine.stopped is None


def test_who_takes_over_a_job_that_starts_stops_the_attempt_and_else_gathers() -> None:
    stop = _stop(Job(begun=False).feed(Resumed(reason="gone")))
    assert (stop.exit_code, stop.reason, stop.root_rank) == (1, "gone", -1)

    for job in (Job(), Job(((0, 1, 2),), begun=False)):
        assert _records(job.feed(Resumed(reason="gone"))) == ["view.change"]
