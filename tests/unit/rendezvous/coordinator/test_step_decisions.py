"""The fate of a step once the survivors have reported."""

from dataclasses import replace

import pytest

from rendezvous.coordinator.coordinator import (
    Tick,
)
from rendezvous.coordinator.gather import RESEND_AFTER_S
from rendezvous.coordinator.step_decisions import CONTEXTS_WAIT_S
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import ContextBuffer, Decision, LostContexts, Report
from rendezvous.protocol.views import Identity, View
from tests.unit.coordination import (
    PAIRS,
    Job,
    decisions_of,
    events,
    exit_code,
    told,
    waits,
)


def test_nothing_is_decided_before_every_survivor_waits_at_the_commit_point() -> None:
    job = Job()
    job.end(2)

    computing = replace(waits(1), phase="compute", microbatches=0)
    effects = job.tell(waits(0), computing)

    assert decisions_of(effects) == {}


def test_what_is_missing_is_dealt_out_once_all_wait() -> None:
    job = Job()
    job.end(2)

    decisions = decisions_of(job.tell(waits(0), waits(1)))

    targets = ((0, ((0, 0), (2, 0))), (1, ((1, 0),)))
    redo = Decision(generation=2, step=0, verdict="redo", held=0, targets=targets)
    assert decisions == {0: redo, 1: redo}


BEGUN = ((2, 0, 0, 0, 0), (2, 7, 0, 3, 0))
"""By rank 2: a microbatch of the step in flight, and some of another one."""


@pytest.mark.parametrize("by_itself", [True, False])
def test_what_a_rank_had_begun_that_ended_by_its_own_doing_is_suspect(by_itself: bool) -> None:
    job = Job()
    job.tell(ContextBuffer(rank=2, incarnation=0, contexts=(), begun=BEGUN, by_itself=by_itself))
    job.end(2)

    decisions = decisions_of(job.tell(waits(0), waits(1)))

    suspects = ((2, 0),) if by_itself else ()
    assert [decision.suspects for decision in decisions.values()] == [suspects] * 2


def test_what_ranks_of_two_replicas_have_begun_or_one_gave_up_is_left_alone() -> None:
    job = Job(PAIRS)
    died, mate, both = (0, 0, 0, 0, 0), (0, 0, 1, 1, 0), (0, 0, 2, 2, 1)
    for rank, begun in {1: (died, mate), 0: (mate,), 3: (died, both)}.items():
        job.tell(ContextBuffer(
            rank=rank, incarnation=0, contexts=(), begun=begun, by_itself=rank != 0
        ))  # fmt: skip
        job.end(rank)

    assert job.machine.members.suspects(0) == ((0, 1),)


def test_if_all_hold_the_sums_of_one_generation_they_commit_with_the_work_of_the_lost() -> None:
    job = Job()
    job.end(2)

    decisions = decisions_of(job.tell(waits(0, reduced=1), waits(1, reduced=1)))

    assert {decision.verdict for decision in decisions.values()} == {"commit"}
    assert {decision.held for decision in decisions.values()} == {1}


def test_if_only_some_hold_the_sums_everything_is_reduced_anew() -> None:
    job = Job()
    job.end(2)

    decisions = decisions_of(job.tell(waits(0, reduced=1), waits(1)))

    assert {decision.verdict for decision in decisions.values()} == {"redo"}


def test_a_rank_one_step_behind_is_told_to_commit_without_waiting_for_anybody() -> None:
    job = Job()
    job.end(2)
    ahead = Report(rank=0, generation=2, step=1, phase="compute", microbatches=0, done=(),
                   begun=(), reduced=0)  # fmt: skip

    decisions = decisions_of(job.tell(waits(1, reduced=1), ahead))

    assert decisions == {1: Decision(generation=2, step=0, verdict="commit", held=1, targets=())}


def test_a_rank_that_is_behind_and_holds_nothing_breaks_inv_9() -> None:
    job = Job()
    job.end(2)
    ahead = replace(waits(0), step=1)

    assert exit_code(job.tell(waits(1), ahead)) == ExitCode.INVARIANT


def test_a_second_loss_while_gathering_starts_again_with_what_is_reported_then() -> None:
    job = Job()
    job.end(2)
    job.tell(waits(0))
    job.end(1)

    late = job.tell(waits(0))  # of generation 2: answered with the view, and no more
    decisions = decisions_of(job.tell(waits(0, generation=3)))

    assert told(late, View) == {0: job.machine.view}
    assert decisions[0].targets == ((0, ((0, 0), (1, 0), (2, 0))),)


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    job = Job()
    job.end(2)
    job.tell(waits(0, (0, 0), (2, 0)), replace(waits(0), phase="compute", microbatches=0))

    decisions = decisions_of(job.tell(waits(1)))

    assert decisions[1].targets == ((0, ((0, 0), (2, 0))), (1, ((1, 0),)))


def test_a_view_without_an_answer_is_said_again_to_the_silent_only() -> None:
    job = Job()
    job.end(2)
    job.tell(waits(0))
    deadline = job.machine.deadline()

    assert deadline == RESEND_AFTER_S
    job.now = deadline
    assert told(job.feed(Tick()), View) == {1: job.machine.view}
    assert job.machine.deadline() == 2 * RESEND_AFTER_S


def test_after_a_redo_it_needs_no_time_and_answers_whoever_asks_again() -> None:
    job = Job()
    job.end(2)
    redo = decisions_of(job.tell(waits(0), waits(1)))[1]

    assert job.machine.deadline() is None
    assert decisions_of(job.tell(waits(1))) == {1: redo}


def test_a_decision_to_commit_is_recorded_once() -> None:
    job = Job()
    job.end(2)
    effects = job.tell(waits(0, reduced=1), waits(1, reduced=1))
    effects += job.tell(ContextBuffer(rank=2, incarnation=0, contexts=(b"late",)))
    job.now = 0.5
    effects += job.feed(Tick())

    assert events(effects).count("decision.make") == 1


def test_a_redo_waits_for_the_contexts_of_a_rank_that_is_not_reaped_but_not_for_ever() -> None:
    job = Job(PAIRS)
    job.end(4)  # rank 5 is told to die and has not been seen to
    reports = [waits(rank, (slot, 0)) for rank, slot in ((0, 0), (1, 0), (2, 1), (3, 1))]

    assert decisions_of(job.tell(*reports)) == {}
    job.now = CONTEXTS_WAIT_S
    assert len(decisions_of(job.feed(Tick()))) == 4


def test_contexts_go_to_the_survivors_of_the_same_shard_position_also_after_the_decision() -> None:
    job = Job(PAIRS)
    job.end(4, 5)
    job.tell(*[waits(rank, (slot, 0)) for rank, slot in ((0, 0), (1, 0), (2, 1), (3, 1))])

    effects = job.tell(ContextBuffer(rank=5, incarnation=0, contexts=(b"old", b"new")))

    lost_contexts = LostContexts(generation=2, contexts=((5, (b"old", b"new")),))
    assert told(effects, LostContexts) == {1: lost_contexts, 3: lost_contexts}


def test_marks_of_microbatches_go_with_the_contexts() -> None:
    job = Job()
    job.tell(ContextBuffer(rank=2, incarnation=0, contexts=(b"new",), marks=b"ring"))

    effects = job.end(2)

    lost_contexts = LostContexts(generation=2, contexts=((2, (b"new",)),), marks=((2, b"ring"),))
    assert told(effects, LostContexts) == {0: lost_contexts, 1: lost_contexts}


def _begins(rank: int, slot: int, *done: Identity, begun: Identity) -> Report:
    return Report(rank=rank, generation=3, step=0, phase="compute", microbatches=0,
                  done=((slot, 0), *done), begun=(begun,), reduced=0)  # fmt: skip


def test_a_rank_that_waits_joins_what_its_shard_mate_has_begun() -> None:
    job = Job(((0, 1, 2), (3, 4, 5), (6, 7, 8)))
    job.end(3, 4, 5, 6, 7, 8)

    first = job.tell(_begins(0, 0, begun=(1, 0)), waits(1, (0, 0), generation=3))
    settled = waits(0, (0, 0), (1, 0), generation=3)
    early = job.tell(settled, waits(2, (0, 0), (1, 0), generation=3))

    assert decisions_of(first)[1].targets == ((0, ((1, 0),)),)
    assert decisions_of(first)[1].verdict == "level"
    assert decisions_of(early) == {}  # rank 1 has not said that it is level
    last = decisions_of(job.tell(waits(1, (0, 0), (1, 0), generation=3)))
    assert {decision.verdict for decision in last.values()} == {"redo"}


def test_a_mate_that_goes_on_to_its_next_microbatch_is_joined_again() -> None:
    job = Job(((0, 1, 2), (3, 4, 5), (6, 7, 8)))
    job.end(3, 4, 5, 6, 7, 8)
    job.tell(_begins(0, 0, begun=(1, 0)), waits(1, (0, 0), generation=3))

    late = _begins(2, 0, (1, 0), begun=(2, 0))
    effects = job.tell(waits(1, (0, 0), (1, 0), generation=3), late)

    assert decisions_of(effects)[1].targets == ((0, ((2, 0),)),)
