"""A lost replica comes back: who is invited, when a view has it, and what stands against that."""

import pytest

from rendezvous.coordinator.arrivals import INVITE_AGAIN_S
from rendezvous.coordinator.job_events import NodeLost, Tick
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.arrival_messages import REFUSE_RETURN, Arrival, Held
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Decision, Farewell, Notice, PeerFault
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.unit.coordination import (
    PAIRS,
    applied,
    decisions_of,
    events,
    exit_code,
    fields_of,
    stopped,
    told,
    waits,
)
from tests.unit.returning_job import ReturningJob, invited, joining, killed, started


def lost_and_ready(replicas: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,))) -> ReturningJob:
    """Replica 1 is lost, its step is made good, and it is about to say that it is ready."""
    job = ReturningJob(replicas)
    job.lose(1)
    job.start(*replicas[1])
    return job


def test_a_replica_that_is_ready_joins_at_the_step_at_which_all_members_are_held() -> None:
    job = lost_and_ready()
    job.now = 5.0
    ready = job.ready(1)
    job.commit()
    job.now = 6.0
    first, second = job.hold(0), job.hold(2)

    assert invited(ready) == {0: (1,), 2: (1,)}
    assert events(ready) == ["replica.ready", "replica.invite"]
    assert first == []
    assert joining(second) == dict.fromkeys((0, 1, 2), ((1,), 3))
    assert job.machine.members.live == (0, 1, 2)
    assert fields_of(second, "replica.return") == {
        "slot": 1, "ranks": [1], "step": 3, "wait_ms": 1000.0, "hold_ms": 0.0,
    }  # fmt: skip
    assert fields_of(second, "view.change") == {
        "generation": 3, "live": [0, 1, 2], "lost_ranks": [], "joined": [1], "step": 3,
    }  # fmt: skip


def test_nobody_comes_back_unless_the_user_wants_it() -> None:
    job = ReturningJob(policy=RecoveryPolicy())

    assert started(job.lose(1)) == []
    assert job.bring_back(1) == [] or joining(job.bring_back(1)) == {}
    assert job.machine.members.live == (0, 2)


def test_nothing_is_gathered_in_the_generation_that_others_join() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.commit()
    job.hold()

    assert decisions_of(job.tell(*(waits(r, generation=3, step=3) for r in (0, 1, 2)))) == {}
    assert job.machine.snapshot()["gathering"] is False


def test_half_a_replica_is_not_invited() -> None:
    job = lost_and_ready(PAIRS)

    assert invited(job.ready(2)) == {}
    assert invited(job.ready(3)) == dict.fromkeys((0, 1, 4, 5), (2, 3))


def test_all_that_are_ready_come_together() -> None:
    job = ReturningJob(((0,), (1,), (2,), (3,)))
    job.lose(1)
    job.lose(2)
    job.kill(3)  # nothing is invited while something is gathered
    job.start(1, 2)
    during = job.ready(1, 2)
    after = job.redo()

    assert invited(during) == {}
    assert invited(after) == {0: (1, 2)}
    assert joining(job.hold()) == dict.fromkeys((0, 1, 2), ((1, 2), 4))


def test_while_an_invitation_stands_there_is_no_other() -> None:
    job = ReturningJob(((0,), (1,), (2,), (3,)))
    job.lose(1)
    job.lose(2)
    job.start(1, 2)

    assert invited(job.ready(1)) == {0: (1,), 3: (1,)}
    assert invited(job.ready(2)) == {}
    assert joining(job.hold()) == dict.fromkeys((0, 1, 3), ((1,), 3))
    assert invited(job.commit()) == {0: (2,), 1: (2,), 3: (2,)}


def test_nobody_is_invited_before_those_who_came_last_have_committed() -> None:
    job = lost_and_ready()
    job.bring_back(1)
    job.births[1] -= 1
    job.kill(2)
    job.start(2)

    assert invited(job.ready(2)) == {}


def test_an_invitation_does_not_outlive_a_view() -> None:
    job = lost_and_ready()
    job.ready(1)
    held = Held(rank=0, generation=job.generation, step=2)
    job.tell(PeerFault(rank=2, generation=job.generation, reason="reset"))

    assert told(job.tell(held), View).keys() == {0}  # it missed the newest one
    assert joining(job.hold(2)) == {}
    assert job.machine.members.live == (0, 2)


def test_who_is_ready_stays_ready_when_a_view_ends_the_invitation() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.tell(PeerFault(rank=2, generation=job.generation, reason="reset"))

    assert invited(job.redo()) == {0: (1,), 2: (1,)}


def test_a_view_in_which_a_held_member_is_lost_lets_the_others_go_on() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold(0)
    view = job.machine.generation
    effects = job.kill(2)

    assert joining(effects) == {} and told(effects, View).keys() == {0}
    assert job.generation == view + 1


def test_an_ended_member_is_enough_for_nobody_to_come() -> None:
    job = lost_and_ready()
    job.tell(Farewell(rank=2, generation=job.generation, step=3))

    assert invited(job.ready(1)) == {}


def test_a_member_that_ends_lets_those_go_on_who_wait_for_newcomers() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold(0)
    effects = job.tell(Farewell(rank=2, generation=job.generation, step=3))

    assert joining(effects) == {} and told(effects, View).keys() == {0, 2}


def test_a_member_that_ends_takes_those_along_that_are_on_the_way() -> None:
    """A script may catch SIGTERM, and the job would wait for it."""
    job = lost_and_ready()

    assert killed(job.tell(Farewell(rank=2, generation=job.generation, step=3))) == [(1,)]
    assert killed(job.tell(Farewell(rank=0, generation=job.generation, step=3))) == []


def test_who_is_held_after_the_last_newcomer_has_died_goes_on() -> None:
    job = lost_and_ready()
    job.ready(1)
    assert told(job.kill(1), View) == {}
    effects = job.hold(0)

    assert joining(effects) == {} and told(effects, View).keys() == {0, 2}


def test_a_newcomer_that_dies_lets_those_go_on_who_are_held() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold(0)
    effects = job.kill(1)

    assert joining(effects) == {} and told(effects, View).keys() == {0, 2}
    assert joining(job.hold(0, 2)) == {}


def test_the_mates_of_a_newcomer_that_dies_are_ended_and_start_with_it() -> None:
    job = lost_and_ready(PAIRS)
    job.ready(2, 3)

    assert killed(job.kill(3)) == [(2,)]
    assert job.ready(2) == []  # it is being ended
    job.now = 2.5
    assert [order.ranks for order in started([*job.kill(2), *job.feed(Tick())])] == []
    job.now = 5.0
    assert [order.ranks for order in started(job.feed(Tick()))] == [(2, 3)]


def test_members_that_are_not_held_are_invited_again() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold(2)
    assert told(job.feed(Tick()), Arrival) == {}
    job.now = job.machine.deadline() or 0.0
    again = job.feed(Tick())

    assert job.now == INVITE_AGAIN_S
    assert invited(again) == {0: (1,)}


def test_ready_and_held_may_be_said_twice() -> None:
    job = lost_and_ready()
    job.ready(1)

    assert job.ready(1) == []
    assert job.hold(0) == job.hold(0) == []
    assert joining(job.hold(2)) == dict.fromkeys((0, 1, 2), ((1,), 2))


def test_a_newcomer_that_missed_its_view_is_told_again() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold()

    assert joining(job.ready(1)) == {1: ((1,), 2)}


def test_members_at_the_tops_of_different_steps_break_an_invariant() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold(0, step=2)

    assert exit_code(job.hold(2, step=3)) == ExitCode.INVARIANT


def test_a_newcomer_that_does_not_commit_its_first_step_in_time_is_lost() -> None:
    job = lost_and_ready()
    job.now = 10.0
    job.commit()  # a step takes ten seconds
    job.ready(1)
    job.hold()
    job.now = 10.0 + 30.0 + 2 * 10.0 - 0.1
    early = job.feed(Tick())
    job.now += 0.2
    late = job.feed(Tick())

    assert events(early) == []
    assert events(late)[0] == "replica.lost" and killed(late) == [(1,)]
    assert job.machine.members.live == (0, 2)


def test_a_newcomer_whose_first_step_is_committed_is_watched_no_more() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold()
    job.commit()

    assert job.machine.deadline() is None


def test_a_newcomer_is_a_member_like_any_other_and_may_be_lost_again() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold()
    effects = job.kill(1)
    redo = decisions_of([
        *job.tell(*(waits(r, generation=job.generation, step=2) for r in (0, 2)))
    ])  # fmt: skip

    assert "replica.lost" in events(effects)
    assert {d.verdict for d in redo.values()} == {"redo"} and redo.keys() == {0, 2}
    assert isinstance(redo[0], Decision)


def test_a_microbatch_that_ends_a_newcomer_and_a_survivor_ends_the_job() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.hold()
    job.kill(1, error="ValueError: bad row", code=1)
    stop = stopped(job.kill(0, error="ValueError: bad row", code=1))

    assert stop.exit_code == 1 and "an error of the script itself" in stop.reason


def test_a_loss_long_before_is_not_alike_to_another_after_the_return() -> None:
    job = ReturningJob()
    job.kill(1, error="ValueError: bad row", code=1)
    job.redo()
    job.bring_back(1)
    job.commit()
    effects = job.kill(0, error="ValueError: bad row", code=1)

    assert "replica.lost" in events(effects)


def test_lines_of_steps_before_the_return_do_not_wait_for_who_was_away() -> None:
    job = ReturningJob()
    job.lose(1)
    job.start(1)
    job.ready(1)
    told_by_one = job.tell(applied(0, generation=2, step=2))
    job.hold(step=3)
    lines = job.tell(applied(2, generation=2, step=2))

    assert "step.commit" not in events(told_by_one)
    found = [e for e in lines if isinstance(e, Record) and e.event == "step.commit"]
    assert [line.fields["step"] for line in found] == [2]
    assert "unseen" not in found[-1].fields


def test_a_lost_node_takes_its_newcomers_with_it() -> None:
    job = lost_and_ready(PAIRS)
    job.ready(2, 3)
    job.hold(0)
    effects = job.feed(NodeLost(node="b", ranks=(3,), reason="silent"))

    assert killed(effects) == [(2,)]
    assert joining(effects) == {} and told(effects, View).keys() == {0, 1, 4, 5}


@pytest.mark.parametrize("held", [(), (0,), (0, 1, 4)])
def test_a_view_has_newcomers_only_when_all_members_are_held(held: tuple[int, ...]) -> None:
    job = lost_and_ready(PAIRS)
    job.ready(2, 3)

    assert joining(job.hold(*held) if held else []) == {}
    assert job.machine.members.live == (0, 2)


def test_a_newcomer_that_leaves_is_not_the_cause_where_its_donor_was_lost() -> None:
    job = ReturningJob(((0,), (1,)))
    job.lose(1)
    job.bring_back(1)
    job.kill(1, code=ExitCode.AWAY)  # it noticed first
    stop = stopped(job.kill(0))

    assert (stop.exit_code, stop.root_rank) == (137, 0)


def refusal(rank: int) -> Notice:
    return Notice(rank=rank, generation=2, event=REFUSE_RETURN, reason="gradients by hand")


def test_where_no_process_can_come_back_none_is_started() -> None:
    job = ReturningJob()
    job.tell(refusal(0))

    assert started(job.lose(1)) == []


def test_who_is_held_goes_on_and_newcomers_end_where_none_can_take_its_place() -> None:
    job = lost_and_ready()
    job.ready(1)
    job.commit()
    job.hold(0)
    refused = job.tell(refusal(2))

    assert killed(refused) == [(1,)]
    assert joining(refused) == {} and job.generation == 3
    assert job.machine.members.live == (0, 2)
