"""Ends at which nobody is lost: the coordinator stops the job, as it would end under torchrun."""

from dataclasses import replace

import pytest

from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.effects import Effect, StopJob
from rendezvous.protocol.messages import (
    Committed,
    Discord,
    Farewell,
    Overdue,
    PeerFault,
    Promise,
    Report,
    Verdict,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import Identity
from tests.unit.coordination import Job


def waits(rank: int, *done: Identity, step: int = 0) -> Report:
    return Report(
        rank=rank, generation=2, step=step, phase="settle", microbatches=1,
        done=done or ((rank, 0),), begun=(), reduced=0,
    )  # fmt: skip


def stop(effects: list[Effect]) -> int:
    (one,) = (effect.stop for effect in effects if isinstance(effect, StopJob))
    return one.exit_code


def records(effects: list[Effect]) -> list[str]:
    return [effect.event for effect in effects if isinstance(effect, Record)]


def reason(effects: list[Effect]) -> str:
    (stop,) = (effect.stop for effect in effects if isinstance(effect, StopJob))
    return stop.reason


def test_a_rank_that_ends_because_others_did_not_come_ends_the_job() -> None:
    job = Job()
    said = job.tell(Overdue(rank=0, generation=1, reason="the vote timed out"))

    effects = job.end(0, code=1)

    assert records(said) == ["notice.give"]
    assert stop(effects) == 1, "whoever hangs would be waited for by those who are left"


def test_a_rank_that_went_on_after_all_is_lost_like_others() -> None:
    job = Job()
    job.tell(Overdue(rank=0, generation=1, reason="a barrier timed out"))
    job.tell(Committed(rank=0, generation=1, step=1, done=((0, 0),), redone=(), total=3, digest=""))

    assert "replica.lost" in records(job.end(0, code=1))


def test_a_signal_is_a_loss_whatever_was_overdue() -> None:
    job = Job()
    job.tell(Overdue(rank=0, generation=1, reason="a barrier timed out"))

    assert "replica.lost" in records(job.end(0, code=-9))


def test_ranks_that_do_different_things_stop_the_job_and_break_no_invariant() -> None:
    job = Job()

    effects = job.tell(Discord(rank=1, generation=1, reason="rank 0: 2; rank 1: 1"))

    assert (stop(effects), reason(effects)) == (1, "rank 0: 2; rank 1: 1")
    assert "invariant.break" not in records(effects)


def test_unequal_microbatches_are_not_dealt_out_but_told_with_their_ranks() -> None:
    job = Job()
    job.end(2)
    job.tell(waits(0))

    effects = job.tell(replace(waits(1, (1, 0), (1, 1)), microbatches=2))

    assert stop(effects) == 1
    assert "rank 0: 1 microbatch; rank 1: 2 microbatches" in reason(effects)


@pytest.mark.parametrize("promise", ["unprotected", "rollback"])
@pytest.mark.parametrize("lost", [True, False])
def test_where_nothing_can_be_made_good_any_more_a_loss_that_is_gathered_ends_the_job(
    lost: bool, promise: Promise
) -> None:
    """Two ranks differ in a step from which one has gone on, and another one is lost."""
    uneven = Verdict(rank=0, generation=1, promise=promise, microbatches=1, reason="ranks differ")
    job = Job()
    if lost:
        job.end(2)

    effects = job.tell(uneven)

    if lost:
        assert stop(effects) == 137 and reason(effects) == job.machine.book.root().reason
    else:
        assert not any(isinstance(effect, StopJob) for effect in effects)
        assert stop(job.end(2)) == 137


@pytest.mark.parametrize("returned_in", [{1: 5}, {0: 5, 1: 9}, {1: 9}])
@pytest.mark.parametrize("others", [(), (0,)])
def test_a_replica_that_came_back_and_takes_unequally_many_is_lost_and_nobody_else_comes(
    others: tuple[int, ...], returned_in: dict[int, int]
) -> None:
    """Also where all were lost before, and one so long ago that nobody remembers when."""
    job = Job(policy=RecoveryPolicy(returns=True))
    job.end(2)
    job.machine.members.births.update(dict.fromkeys((1, *others), 1))
    job.machine.members.returned_in.update(returned_in)
    job.tell(waits(0))

    effects = job.tell(replace(waits(1, (1, 0), (1, 1)), microbatches=2))

    assert not any(isinstance(effect, StopJob) for effect in effects)
    (lost,) = (e for e in effects if isinstance(e, Record) and e.event == "replica.lost")
    assert lost.reason.startswith("rank 1 came back and takes another number of microbatches to")
    assert job.machine.members.live == (0,)
    assert not job.machine.arrivals.serves


def test_two_that_came_back_together_and_part_end_the_job() -> None:
    job = Job(policy=RecoveryPolicy(returns=True))
    job.end(2)
    job.machine.members.births.update({0: 1, 1: 1})
    job.machine.members.returned_in.update({0: 5, 1: 5})
    job.tell(waits(0))

    assert stop(job.tell(replace(waits(1, (1, 0), (1, 1)), microbatches=2))) == 1


def test_a_transaction_that_an_ended_script_never_comes_to_ends_the_job() -> None:
    job = Job()
    job.tell(*(Farewell(rank=rank, generation=1, step=12) for rank in (0, 2)))
    job.tell(PeerFault(rank=1, generation=1, reason="reset"))

    effects = job.tell(waits(1, step=12))

    assert stop(effects) == 1
    assert "rank 1 waits" in reason(effects) and "rank 0 has ended after 12 steps" in reason(
        effects
    )
