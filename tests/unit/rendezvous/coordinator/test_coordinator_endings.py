"""Scripts that end while others still have to meet."""

import pytest

from rendezvous.coordinator.coordinator import Closing, Stopping
from rendezvous.protocol.effects import KillRanks, StopJob
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Exited, Farewell, PeerFault, Stop
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.unit.coordination import PAIRS, Job, applied, events, fields_of, told, waits


def test_a_view_says_whose_script_had_ended_and_goes_on_to_say_so() -> None:
    job = Job()
    job.tell(Farewell(rank=0, generation=1, step=1))

    view = told(job.end(2), View)[1]
    job.tell(Farewell(rank=1, generation=2, step=1))

    assert isinstance(view, View) and (view.live_ranks, view.ended) == ((0, 1), (0,))
    assert job.machine.view == view


def test_who_ended_before_it_met_the_others_is_not_waited_for() -> None:
    job = Job()
    job.end(2)

    again = job.tell(Farewell(rank=0, generation=1, step=1))
    met = job.tell(Farewell(rank=0, generation=1, step=1))

    view = told(again, View)[1]
    assert isinstance(view, View) and (view.generation, view.ended) == (3, (0,))
    assert not told(met, View)


def test_who_met_the_others_and_then_ended_begins_no_generation() -> None:
    job = Job()
    job.end(2)

    assert not told(job.tell(Farewell(rank=0, generation=2, step=1)), View)


def test_who_fails_after_its_script_is_told_from_who_did_not_end_and_was_ended() -> None:
    job = Job()
    job.tell(*(Farewell(rank=rank, generation=1, step=1) for rank in (0, 1, 2)))

    said = [
        effect.reason
        for rank, ours in ((0, False), (1, True))
        for effect in job.tell(
            Exited(
                rank=rank, incarnation=0, node="a", code=-15, ours=ours, error="", detected_s=0.0
            )
        )
        if isinstance(effect, Record) and effect.event == "notice.give"
    ]

    assert said == [
        "was ended by signal 15 after its script had ended",
        "did not end after its script, and recoverrun ended it",
    ]


def test_a_process_that_ends_well_in_mid_run_is_a_lost_replica() -> None:
    job = Job()
    job.end(1, code=0)
    job.tell(PeerFault(rank=0, generation=1, reason="connection reset"))

    effects = job.tell(waits(0, step=7), waits(2, step=7))

    (lost,) = [e for e in effects if isinstance(e, Record) and e.event == "replica.lost"]
    assert lost.reason == "rank 1 exited with code 0 before the end of step 7"
    assert (lost.fields["slot"], lost.fields["root_rank"], lost.fields["ranks"]) == (1, 1, [1])
    assert job.machine.view.losses == (1,)
    assert job.machine.view.live == (0, 2)


def test_a_process_that_ends_well_in_mid_run_takes_its_shard_mates_along() -> None:
    job = Job(PAIRS)
    job.end(3, code=0)
    job.tell(PeerFault(rank=0, generation=1, reason="connection reset"))

    effects = job.tell(*(waits(rank, (rank // 2, 0), step=7) for rank in (0, 1, 2, 4, 5)))

    (kill,) = [effect.kill for effect in effects if isinstance(effect, KillRanks)]
    assert kill.ranks == (2,)


@pytest.mark.parametrize(
    ("error", "root"), [("Connection closed by peer", 3), ("ValueError: bad record", 2)]
)
def test_who_ended_is_named_and_not_the_shard_mate_that_had_it_for_its_forward(
    error: str, root: int
) -> None:
    job = Job(PAIRS)
    job.end(3, code=0)

    effects = job.end(2, code=1, error=error)

    (lost,) = [e for e in effects if isinstance(e, Record) and e.event == "replica.lost"]
    assert (lost.fields["root_rank"], lost.fields["ranks"]) == (root, [2, 3])
    assert lost.reason == {
        3: "rank 3 exited with code 0 while its replica trained",
        2: "rank 2 exited with code 1: ValueError: bad record",
    }[root]  # fmt: skip


def test_below_the_minimum_a_process_that_ended_well_is_no_success() -> None:
    job = Job(minimum=3)
    job.end(1, code=0)
    job.tell(PeerFault(rank=0, generation=1, reason="connection reset"))

    effects = job.tell(waits(0, step=7), waits(2, step=7))

    (stopped,) = [effect.stop for effect in effects if isinstance(effect, StopJob)]
    assert stopped.exit_code == ExitCode.BELOW_MINIMUM
    assert "exited with code 0" in stopped.reason and "2 of at least 3" in stopped.reason


def test_steps_that_are_committed_after_a_stop_are_in_the_journal_and_nothing_else_counts() -> None:
    job = Job()
    job.feed(Stopping(Stop(exit_code=ExitCode.TERMINATED, reason="asked", root_rank=-1)))

    whole = job.tell(*(applied(rank, (rank, 0), generation=1) for rank in (0, 1, 2)))
    lost = job.end(2)
    begun = job.tell(*(applied(rank, (rank, 0), generation=1, step=1) for rank in (0, 1)))
    closed = job.feed(Closing())

    assert events(whole) == ["step.commit"]
    assert (lost, begun) == ([], [])
    assert fields_of(closed, "step.commit")["step"] == 1
