"""Membership and the fate of steps, one event at a time."""

from dataclasses import replace

from rendezvous.coordinator.coordinator import (
    CONTEXTS_WAIT_S,
    Coordinator,
    NodeLost,
    Received,
    Tick,
)
from rendezvous.coordinator.gather import RESEND_AFTER_S, RESEND_RANKS, resend_after
from rendezvous.protocol.effects import Effect, KillRanks, Record, StopJob, ToRank
from rendezvous.protocol.messages import (
    Committed,
    ContextBuffer,
    Decision,
    Exited,
    Farewell,
    Hello,
    Identity,
    Kill,
    LostContexts,
    Notice,
    PeerFault,
    Report,
    Topology,
    View,
)
from tests.unit.coordination import PAIRS, Job, told, verdict


def _waits(
    rank: int, *done: Identity, generation: int = 2, step: int = 0, reduced: int = 0
) -> Report:
    """This rank waits at the commit point of `step`; without `done` it has one home microbatch."""
    return Report(
        rank=rank, generation=generation, step=step, phase="settle", microbatches=1,
        done=done or ((rank, 0),), begun=(), reduced=reduced,
    )  # fmt: skip


def _applied(rank: int, *done: Identity, generation: int = 2, step: int = 0) -> Committed:
    redone = tuple(identity for identity in done if identity[0] != rank)
    return Committed(rank=rank, generation=generation, step=step, done=done, redone=redone,
                     total=3, digest="")  # fmt: skip


def _decisions(effects: list[Effect]) -> dict[int, Decision]:
    found = {e.rank: e.message for e in effects if isinstance(e, ToRank)}
    return {rank: m for rank, m in found.items() if isinstance(m, Decision)}


def _records(effects: list[Effect]) -> list[str]:
    return [effect.event for effect in effects if isinstance(effect, Record)]


def _fields(effects: list[Effect], event: str) -> dict[str, object]:
    (record,) = (e for e in effects if isinstance(e, Record) and e.event == event)
    return dict(record.fields)


def _stop(effects: list[Effect]) -> int:
    (stop,) = (effect.stop for effect in effects if isinstance(effect, StopJob))
    return stop.exit_code


# ------------------------------------------------------------------------------------- forming


def test_a_loss_before_the_topology_is_known_stops_the_job_with_the_code_of_the_signal() -> None:
    machine = Coordinator(world=(0, 1))
    exited = Exited(rank=1, incarnation=0, node="a", code=-9, ours=False, error="", detected_s=0.0)

    assert _stop(machine.step(Received(message=exited), 0.0)) == 137


def test_a_hello_is_recorded_once_and_answered_each_time() -> None:
    job = Job()
    hello = Hello(rank=1, incarnation=0, pid=7, torch="2.13")

    first, again = job.tell(hello), job.tell(hello)

    assert _records(first) == ["worker.hello"] and _records(again) == []
    assert told(first, View) == told(again, View) == {1: job.machine.view}


def test_a_topology_that_is_no_partition_of_the_world_stops_the_job() -> None:
    for replicas in (((0,), (1,)), ((0, 1), (1, 2)), ((0,), (1,), (5,))):
        machine = Coordinator(world=(0, 1, 2))
        topology = Topology(rank=0, generation=1, strategy="test", replicas=replicas)

        assert _stop(machine.step(Received(message=topology), 0.0)) == 85


def test_two_ranks_that_see_different_replicas_stop_the_job() -> None:
    job = Job()

    other = Topology(rank=1, generation=1, strategy="test", replicas=((0, 1, 2),))

    assert _stop(job.tell(other)) == 85


def test_the_promise_is_the_weakest_of_the_live_ranks_and_stated_once() -> None:
    job = Job(begun=False)

    early = job.tell(verdict(0, "exact-samples"), verdict(2, "exact-samples"))
    stated = job.tell(verdict(1, "equal-count"), verdict(1, "equal-count"))

    assert _records(early) == []
    assert _fields(stated, "promise.state")["promise"] == "equal-count"


def test_the_reason_is_that_of_a_rank_which_has_one() -> None:
    job = Job(begun=False)
    silent = replace(verdict(0, "equal-count"), reason="")

    stated = job.tell(silent, verdict(1, "equal-count"), verdict(2, "exact-samples"))

    reasons = [e.reason for e in stated if isinstance(e, Record) and e.event == "promise.state"]
    assert reasons == ["r"]


def test_a_promise_that_was_too_much_is_taken_back_once() -> None:
    job = Job()

    weaker = job.tell(verdict(2, "equal-count"))
    known = job.tell(*(verdict(rank, "equal-count") for rank in range(3)))
    weakest = job.tell(verdict(0, "unprotected"))

    assert _fields(weaker, "promise.state")["promise"] == "equal-count"
    assert _records(known) == []
    assert _fields(weakest, "promise.state")["promise"] == "unprotected"


def test_a_rank_that_refuses_protection_takes_it_from_the_job() -> None:
    job = Job()
    job.tell(verdict(1, "unprotected"))

    assert _stop(job.end(2)) == 137
    assert not job.machine.starting


def test_a_notice_of_any_name_is_a_notice_in_the_journal() -> None:
    effects = Job().tell(Notice(rank=1, generation=1, event="no.such", reason="words"))

    assert _fields(effects, "notice.give") == {"rank": 1, "event": "no.such"}


# ------------------------------------------------------------------------------------- losses


def test_a_lost_replica_leaves_with_all_its_ranks_in_one_generation() -> None:
    job = Job(PAIRS)

    effects = job.end(3)

    (kill,) = (effect.kill for effect in effects if isinstance(effect, KillRanks))
    assert kill == Kill(generation=2, ranks=(2,), reason="replica 1 left with rank 3")
    view = View(generation=2, live=(0, 2), live_ranks=(0, 1, 4, 5), losses=(3,))
    assert told(effects, View) == dict.fromkeys((0, 1, 4, 5), view)
    assert _fields(effects, "replica.lost")["root_rank"] == 3
    assert job.end(2) == []  # the mate that was killed is no loss of its own


def test_a_lost_node_takes_several_replicas_out_in_one_generation() -> None:
    job = Job(PAIRS)

    effects = job.feed(NodeLost(node="b", ranks=(1, 2, 3), reason="silent"))

    assert _records(effects).count("replica.lost") == 2
    assert _records(effects).count("view.change") == 1
    assert job.machine.view.live == (2,)


def test_a_node_lost_after_its_scripts_had_ended_ends_the_job_well() -> None:
    job = Job()
    job.tell(*(Farewell(rank=rank, generation=1, step=3) for rank in range(3)))
    job.end(0, 1, code=0)

    assert _stop(job.feed(NodeLost(node="b", ranks=(2,), reason="gone"))) == 0


def test_fewer_replicas_than_the_minimum_stop_the_job_with_81_after_the_record() -> None:
    job = Job(minimum=3)

    effects = job.end(1)

    assert _records(effects) == ["replica.lost"]
    assert _stop(effects) == 81


def test_the_last_replica_stops_the_job_with_its_own_code() -> None:
    job = Job()
    job.end(0, 1)

    assert _stop(job.end(2, code=3, error="ValueError: bad")) == 3


def test_the_same_error_on_two_replicas_is_an_error_of_the_script() -> None:
    job = Job()
    job.end(0, code=1, error="ValueError: bad")

    assert _stop(job.end(1, code=1, error="ValueError: bad")) == 1


def test_the_same_error_again_after_a_committed_step_is_another_loss() -> None:
    job = Job()
    job.end(0, code=1, error="ValueError: bad")
    job.now = 1.0
    job.tell(_applied(1, (1, 0), (0, 0)), _applied(2, (2, 0)))

    assert "replica.lost" in _records(job.end(1, code=1, error="ValueError: bad"))


def test_a_hint_makes_the_same_members_meet_again_once() -> None:
    job = Job()
    hint = PeerFault(rank=1, generation=1, reason="connection reset")

    effects = job.tell(hint, replace(hint, rank=2))

    assert _records(effects) == ["fault.hint", "view.change"]
    assert job.machine.view == View(generation=2, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=())


# ------------------------------------------------------------------------------------- gathering


def test_nothing_is_decided_before_every_survivor_waits_at_the_commit_point() -> None:
    job = Job()
    job.end(2)

    computing = replace(_waits(1), phase="compute", microbatches=0)
    effects = job.tell(_waits(0), computing)

    assert _decisions(effects) == {}


def test_what_is_missing_is_dealt_out_once_all_wait() -> None:
    job = Job()
    job.end(2)

    decisions = _decisions(job.tell(_waits(0), _waits(1)))

    targets = ((0, ((0, 0), (2, 0))), (1, ((1, 0),)))
    redo = Decision(generation=2, step=0, verdict="redo", held=0, targets=targets)
    assert decisions == {0: redo, 1: redo}


def test_if_all_hold_the_sums_of_one_generation_they_commit_with_the_work_of_the_lost() -> None:
    job = Job()
    job.end(2)

    decisions = _decisions(job.tell(_waits(0, reduced=1), _waits(1, reduced=1)))

    assert {decision.verdict for decision in decisions.values()} == {"commit"}
    assert {decision.held for decision in decisions.values()} == {1}


def test_if_only_some_hold_the_sums_everything_is_reduced_anew() -> None:
    job = Job()
    job.end(2)

    decisions = _decisions(job.tell(_waits(0, reduced=1), _waits(1)))

    assert {decision.verdict for decision in decisions.values()} == {"redo"}


def test_a_rank_one_step_behind_is_told_to_commit_without_waiting_for_anybody() -> None:
    job = Job()
    job.end(2)
    ahead = Report(rank=0, generation=2, step=1, phase="compute", microbatches=0, done=(),
                   begun=(), reduced=0)  # fmt: skip

    decisions = _decisions(job.tell(_waits(1, reduced=1), ahead))

    assert decisions == {1: Decision(generation=2, step=0, verdict="commit", held=1, targets=())}


def test_a_rank_that_is_behind_and_holds_nothing_breaks_inv_9() -> None:
    job = Job()
    job.end(2)
    ahead = replace(_waits(0), step=1)

    assert _stop(job.tell(_waits(1), ahead)) == 85


def test_a_second_loss_while_gathering_starts_again_with_what_is_reported_then() -> None:
    job = Job()
    job.end(2)
    job.tell(_waits(0))
    job.end(1)

    late = job.tell(_waits(0))  # of generation 2: answered with the view, and no more
    decisions = _decisions(job.tell(_waits(0, generation=3)))

    assert told(late, View) == {0: job.machine.view}
    assert decisions[0].targets == ((0, ((0, 0), (1, 0), (2, 0))),)


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    job = Job()
    job.end(2)
    job.tell(_waits(0, (0, 0), (2, 0)), replace(_waits(0), phase="compute", microbatches=0))

    decisions = _decisions(job.tell(_waits(1)))

    assert decisions[1].targets == ((0, ((0, 0), (2, 0))), (1, ((1, 0),)))


def test_a_view_without_an_answer_is_said_again_to_the_silent_only() -> None:
    job = Job()
    job.end(2)
    job.tell(_waits(0))
    deadline = job.machine.deadline()

    assert deadline == RESEND_AFTER_S
    job.now = deadline
    assert told(job.feed(Tick()), View) == {1: job.machine.view}
    assert job.machine.deadline() == 2 * RESEND_AFTER_S


def test_after_a_redo_it_needs_no_time_and_answers_whoever_asks_again() -> None:
    job = Job()
    job.end(2)
    redo = _decisions(job.tell(_waits(0), _waits(1)))[1]

    assert job.machine.deadline() is None
    assert _decisions(job.tell(_waits(1))) == {1: redo}


def test_a_decision_to_commit_is_recorded_once() -> None:
    job = Job()
    job.end(2)
    effects = job.tell(_waits(0, reduced=1), _waits(1, reduced=1))
    effects += job.tell(ContextBuffer(rank=2, incarnation=0, contexts=(b"late",)))
    job.now = 0.5
    effects += job.feed(Tick())

    assert _records(effects).count("decision.make") == 1


def test_a_redo_waits_for_the_contexts_of_a_rank_that_is_not_reaped_but_not_for_ever() -> None:
    job = Job(PAIRS)
    job.end(4)  # rank 5 is told to die and has not been seen to
    reports = [_waits(rank, (slot, 0)) for rank, slot in ((0, 0), (1, 0), (2, 1), (3, 1))]

    assert _decisions(job.tell(*reports)) == {}
    job.now = CONTEXTS_WAIT_S
    assert len(_decisions(job.feed(Tick()))) == 4


def test_contexts_go_to_the_survivors_of_the_same_shard_position_also_after_the_decision() -> None:
    job = Job(PAIRS)
    job.end(4, 5)
    job.tell(*[_waits(rank, (slot, 0)) for rank, slot in ((0, 0), (1, 0), (2, 1), (3, 1))])

    effects = job.tell(ContextBuffer(rank=5, incarnation=0, contexts=(b"old", b"new")))

    lost_contexts = LostContexts(generation=2, contexts=((5, (b"old", b"new")),))
    assert told(effects, LostContexts) == {1: lost_contexts, 3: lost_contexts}


def test_marks_of_microbatches_go_with_the_contexts() -> None:
    job = Job()
    job.tell(ContextBuffer(rank=2, incarnation=0, contexts=(b"new",), marks=b"ring"))

    effects = job.end(2)

    lost_contexts = LostContexts(generation=2, contexts=((2, (b"new",)),), marks=((2, b"ring"),))
    assert told(effects, LostContexts) == {0: lost_contexts, 1: lost_contexts}


# ------------------------------------------------------------------------------------- lockstep


def _begins(rank: int, slot: int, *done: Identity, begun: Identity) -> Report:
    return Report(rank=rank, generation=3, step=0, phase="compute", microbatches=0,
                  done=((slot, 0), *done), begun=(begun,), reduced=0)  # fmt: skip


def test_a_rank_that_waits_joins_what_its_shard_mate_has_begun() -> None:
    job = Job(((0, 1, 2), (3, 4, 5), (6, 7, 8)))
    job.end(3, 4, 5, 6, 7, 8)

    first = job.tell(_begins(0, 0, begun=(1, 0)), _waits(1, (0, 0), generation=3))
    settled = _waits(0, (0, 0), (1, 0), generation=3)
    early = job.tell(settled, _waits(2, (0, 0), (1, 0), generation=3))

    assert _decisions(first)[1].targets == ((0, ((1, 0),)),)
    assert _decisions(first)[1].verdict == "level"
    assert _decisions(early) == {}  # rank 1 has not said that it is level
    last = _decisions(job.tell(_waits(1, (0, 0), (1, 0), generation=3)))
    assert {decision.verdict for decision in last.values()} == {"redo"}


def test_a_mate_that_goes_on_to_its_next_microbatch_is_joined_again() -> None:
    job = Job(((0, 1, 2), (3, 4, 5), (6, 7, 8)))
    job.end(3, 4, 5, 6, 7, 8)
    job.tell(_begins(0, 0, begun=(1, 0)), _waits(1, (0, 0), generation=3))

    late = _begins(2, 0, (1, 0), begun=(2, 0))
    effects = job.tell(_waits(1, (0, 0), (1, 0), generation=3), late)

    assert _decisions(effects)[1].targets == ((0, ((2, 0),)),)


# ------------------------------------------------------------------------------------- the end


def test_the_job_ends_when_all_live_ranks_ended_and_are_reaped_in_any_order() -> None:
    job = Job()
    effects = job.end(2, code=0)
    effects += job.tell(*(Farewell(rank=rank, generation=1, step=3) for rank in (1, 0)))
    effects += job.end(0, code=0)

    assert not any(isinstance(effect, StopJob) for effect in effects)
    assert _stop(job.end(1, code=0)) == 0


def test_an_ended_rank_proves_the_last_step_to_those_who_still_vote() -> None:
    job = Job()
    job.tell(Farewell(rank=0, generation=1, step=1))
    job.tell(PeerFault(rank=1, generation=1, reason="reset"))

    decisions = _decisions(job.tell(_waits(1, reduced=1)))

    assert decisions[1].verdict == "commit"


def test_an_exit_without_farewell_does_not_keep_its_mates_from_committing() -> None:
    job = Job(PAIRS)
    job.end(0, code=0)  # its farewell is lost; all hold the last step
    job.tell(PeerFault(rank=1, generation=1, reason="reset"))

    places = ((1, 0), (2, 1), (3, 1), (4, 2), (5, 2))
    decisions = _decisions(job.tell(*(_waits(r, (s, 0), reduced=1) for r, s in places)))

    assert {decision.verdict for decision in decisions.values()} == {"commit"}
    assert sorted(decisions) == [1, 2, 3, 4, 5]


def test_a_replica_that_left_without_a_word_is_made_up_for_in_the_next_step() -> None:
    job = Job()
    job.end(0, code=0)
    job.tell(PeerFault(rank=1, generation=1, reason="reset"))

    effects = job.tell(_waits(1), _waits(2))

    assert job.machine.view.live == (1, 2)
    assert "view.change" in _records(effects)
    decisions = _decisions(job.tell(_waits(1, generation=3), _waits(2, generation=3)))
    assert decisions[1].targets == ((1, ((0, 0), (1, 0))), (2, ((2, 0),)))


def test_a_report_of_an_ended_rank_is_not_waited_for_to_change() -> None:
    job = Job()
    job.end(2)
    job.tell(_waits(0, reduced=1), _waits(1, reduced=1))  # both are told to commit
    job.tell(Farewell(rank=0, generation=2, step=1))

    effects = job.tell(_waits(1, step=1))  # its script goes on

    assert _stop(effects) == 1


def test_a_rank_of_another_world_is_not_heard() -> None:
    job = Job()

    assert job.tell(_waits(7), ContextBuffer(rank=9, incarnation=0, contexts=())) == []
    assert job.end(8) == []


def test_thousands_have_longer_to_answer_before_they_are_told_again() -> None:
    assert [resend_after(many) for many in (1, RESEND_RANKS)] == [RESEND_AFTER_S] * 2
    assert resend_after(5 * RESEND_RANKS) == 5 * RESEND_AFTER_S
