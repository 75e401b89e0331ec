"""Membership and the fate of steps, one event at a time."""

from dataclasses import replace

from rendezvous.coordinator.coordinator import (
    Coordinator,
    NodeLost,
    Received,
)
from rendezvous.coordinator.gather import RESEND_AFTER_S, RESEND_RANKS, resend_after
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.effects import Effect, KillRanks, StopJob
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import (
    ContextBuffer,
    Exited,
    Farewell,
    Hello,
    Kill,
    Notice,
    PeerFault,
    Topology,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.unit.coordination import (
    PAIRS,
    Job,
    applied,
    decisions_of,
    events,
    exit_code,
    fields_of,
    stopped,
    told,
    verdict,
    waits,
)

# ------------------------------------------------------------------------------------- forming


def test_a_loss_before_the_topology_is_known_stops_the_job_with_the_code_of_the_signal() -> None:
    machine = Coordinator(world=(0, 1))
    exited = Exited(rank=1, incarnation=0, node="a", code=-9, ours=False, error="", detected_s=0.0)

    assert exit_code(machine.step(Received(message=exited), 0.0)) == 137


def test_the_loss_of_a_rank_that_was_out_of_memory_says_so() -> None:
    job = Job()
    exited = Exited(
        rank=1, incarnation=0, node="a", code=-9, ours=False, error="", detected_s=0.0, starved=True
    )

    (lost,) = [one for one in job.tell(exited) if getattr(one, "event", "") == "replica.lost"]

    assert isinstance(lost, Record)
    assert lost.reason == "rank 1 was ended by signal 9 (out of memory)"


def test_a_hello_is_recorded_once_and_answered_each_time() -> None:
    job = Job()
    hello = Hello(rank=1, incarnation=0, pid=7, torch="2.13")

    first, again = job.tell(hello), job.tell(hello)

    assert events(first) == ["worker.hello"] and events(again) == []
    assert told(first, View) == told(again, View) == {1: job.machine.view}


def test_a_topology_that_is_no_partition_of_the_world_stops_the_job() -> None:
    for replicas in (((0,), (1,)), ((0, 1), (1, 2)), ((0,), (1,), (5,))):
        machine = Coordinator(world=(0, 1, 2))
        topology = Topology(rank=0, generation=1, strategy="test", replicas=replicas)

        assert exit_code(machine.step(Received(message=topology), 0.0)) == ExitCode.INVARIANT


def test_two_ranks_that_see_different_replicas_stop_the_job() -> None:
    job = Job()

    other = Topology(rank=1, generation=1, strategy="test", replicas=((0, 1, 2),))

    assert exit_code(job.tell(other)) == ExitCode.INVARIANT


def test_the_promise_is_the_weakest_of_the_live_ranks_and_stated_once() -> None:
    job = Job(begun=False)

    early = job.tell(verdict(0, "exact-samples"), verdict(2, "exact-samples"))
    stated = job.tell(verdict(1, "equal-count"), verdict(1, "equal-count"))

    assert events(early) == []
    assert fields_of(stated, "promise.state")["promise"] == "equal-count"


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

    assert fields_of(weaker, "promise.state")["promise"] == "equal-count"
    assert events(known) == []
    assert fields_of(weakest, "promise.state")["promise"] == "unprotected"


def test_a_rank_that_refuses_protection_takes_it_from_the_job() -> None:
    job = Job()
    job.tell(verdict(1, "unprotected"))

    assert exit_code(job.end(2)) == 137
    assert not job.machine.starting


def test_a_notice_of_any_name_is_a_notice_in_the_journal() -> None:
    effects = Job().tell(Notice(rank=1, generation=1, event="no.such", reason="words"))

    assert fields_of(effects, "notice.give") == {"rank": 1, "event": "no.such"}


# ------------------------------------------------------------------------------------- losses


def test_a_lost_replica_leaves_with_all_its_ranks_in_one_generation() -> None:
    job = Job(PAIRS)

    effects = job.end(3)

    (kill,) = (effect.kill for effect in effects if isinstance(effect, KillRanks))
    assert kill == Kill(generation=2, ranks=(2,), births=(0,), reason="replica 1 left with rank 3")
    view = View(generation=2, live=(0, 2), live_ranks=(0, 1, 4, 5), losses=(3,))
    assert told(effects, View) == dict.fromkeys((0, 1, 4, 5), view)
    assert fields_of(effects, "replica.lost")["root_rank"] == 3
    assert job.end(2) == []  # the mate that was killed is no loss of its own


def test_a_lost_node_takes_several_replicas_out_in_one_generation() -> None:
    job = Job(PAIRS)

    effects = job.feed(NodeLost(node="b", ranks=(1, 2, 3), reason="silent"))

    assert events(effects).count("replica.lost") == 2
    assert events(effects).count("view.change") == 1
    assert job.machine.view.live == (2,)


def test_a_silent_node_was_lost_when_it_was_heard_last() -> None:
    job = Job(PAIRS)
    job.now += 60.0

    effects = job.feed(NodeLost(node="b", ranks=(2, 3), reason="silent", silent_s=5.5))

    assert fields_of(effects, "node.lost")["silent_s"] == 5.5
    (recovery,) = job.machine.book.recoveries
    assert recovery.loss.failed_at == job.now - 5.5
    assert recovery.loss.detected_s == 5.5


def test_a_node_lost_after_its_scripts_had_ended_ends_the_job_well() -> None:
    job = Job()
    job.tell(*(Farewell(rank=rank, generation=1, step=3) for rank in range(3)))
    job.end(0, 1, code=0)

    assert exit_code(job.feed(NodeLost(node="b", ranks=(2,), reason="gone"))) == 0


def test_a_script_with_fewer_replicas_than_the_minimum_is_stopped_before_it_loses_any() -> None:
    job = Job(minimum=4, begun=False)

    assert job.machine.stopped is not None
    assert job.machine.stopped.exit_code == 2
    assert job.machine.stopped.reason == "--min-replicas 4, but the script has 3 in all"


def test_fewer_replicas_than_the_minimum_stop_the_job_with_81_after_the_record() -> None:
    job = Job(minimum=3)

    effects = job.end(1)

    assert events(effects) == ["replica.lost"]
    assert exit_code(effects) == ExitCode.BELOW_MINIMUM


def test_the_first_loss_that_nothing_made_good_is_why_the_job_ends_with_the_last_replica() -> None:
    job = Job()
    job.end(0, code=7)
    job.end(1, code=5, error="ValueError: late")

    stop = stopped(job.end(2, code=3, error="ValueError: bad"))
    assert (stop.exit_code, stop.root_rank) == (7, 0)


def test_a_rank_that_failed_earlier_is_the_root_even_if_it_is_heard_last() -> None:
    job = Job()
    job.now = 10.0
    job.end(0, code=1, error="ValueError: at 0")
    job.end(1, code=1, error="RuntimeError: Connection reset by peer", age_s=9.0)

    stop = stopped(job.end(2, code=3, error="ValueError: at 2", age_s=0.5))
    assert (stop.exit_code, stop.root_rank) == (3, 2)


def test_a_loss_that_a_step_made_good_is_not_why_the_job_ends() -> None:
    job = Job()
    job.end(0)
    job.tell(applied(1, (1, 0), (0, 0)), applied(2, (2, 0)))
    job.now = 1.0
    job.end(1, code=5, error="ValueError: at 1")

    assert stopped(job.end(2, code=3, error="ValueError: at 2")).root_rank == 1


def test_the_same_error_on_two_replicas_is_an_error_of_the_script() -> None:
    job = Job()
    job.end(0, code=1, error="ValueError: bad")

    assert exit_code(job.end(1, code=1, error="ValueError: bad")) == 1


def test_the_same_error_on_one_of_several_nodes_may_be_that_of_the_node() -> None:
    job = Job(((0,), (1,), (2,), (3,)), policy=RecoveryPolicy(several_nodes=True))
    gone = "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7'"

    def end(rank: int, node: str) -> list[Effect]:
        exited = Exited(
            rank=rank, incarnation=0, node=node, code=1, ours=False, error=gone, detected_s=0.0
        )
        return job.tell(exited)

    end(0, "gpu-1")
    assert "replica.lost" in events(on_it := end(1, "gpu-1"))
    assert not [effect for effect in on_it if isinstance(effect, StopJob)]
    assert "an error of the script itself" in stopped(end(2, "gpu-2")).reason


def test_the_same_error_on_two_nodes_is_an_error_of_the_script() -> None:
    job = Job(policy=RecoveryPolicy(several_nodes=True))
    ends = [
        Exited(rank=rank, incarnation=0, node=node, code=1, ours=False, error="ValueError: bad",
               detected_s=0.0)
        for rank, node in ((0, "gpu-1"), (1, "gpu-2"))
    ]  # fmt: skip

    assert "an error of the script itself" in stopped(job.tell(*ends)).reason


def test_a_full_disk_ends_the_ranks_of_its_machine_and_not_the_job() -> None:
    job = Job()
    full = "OSError: [Errno 28] No space left on device: 'ckpt.pt'"
    job.end(0, code=1, error=full)
    effects = job.end(1, code=1, error=full)

    assert "replica.lost" in events(effects)
    assert not [effect for effect in effects if isinstance(effect, StopJob)]


def test_the_same_error_again_after_a_committed_step_is_another_loss() -> None:
    job = Job()
    job.end(0, code=1, error="ValueError: bad")
    job.now = 1.0
    job.tell(applied(1, (1, 0), (0, 0)), applied(2, (2, 0)))

    assert "replica.lost" in events(job.end(1, code=1, error="ValueError: bad"))


def test_a_hint_makes_the_same_members_meet_again_once() -> None:
    job = Job()
    hint = PeerFault(rank=1, generation=1, reason="connection reset")

    effects = job.tell(hint, replace(hint, rank=2))

    assert events(effects) == ["fault.hint", "view.change"]
    assert job.machine.view == View(generation=2, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=())


# ------------------------------------------------------------------------------------- the end


def test_the_job_ends_when_all_live_ranks_ended_and_are_reaped_in_any_order() -> None:
    job = Job()
    effects = job.end(2, code=0)
    effects += job.tell(*(Farewell(rank=rank, generation=1, step=3) for rank in (1, 0)))
    effects += job.end(0, code=0)

    assert not any(isinstance(effect, StopJob) for effect in effects)
    assert exit_code(job.end(1, code=0)) == 0


def test_an_ended_rank_proves_the_last_step_to_those_who_still_vote() -> None:
    job = Job()
    job.tell(Farewell(rank=0, generation=1, step=1))
    job.tell(PeerFault(rank=1, generation=1, reason="reset"))

    decisions = decisions_of(job.tell(waits(1, reduced=1)))

    assert decisions[1].verdict == "commit"


def test_an_exit_without_farewell_does_not_keep_its_mates_from_committing() -> None:
    job = Job(PAIRS)
    job.end(0, code=0)  # its farewell is lost; all hold the last step
    job.tell(PeerFault(rank=1, generation=1, reason="reset"))

    places = ((1, 0), (2, 1), (3, 1), (4, 2), (5, 2))
    decisions = decisions_of(job.tell(*(waits(r, (s, 0), reduced=1) for r, s in places)))

    assert {decision.verdict for decision in decisions.values()} == {"commit"}
    assert sorted(decisions) == [1, 2, 3, 4, 5]


def test_a_replica_that_left_without_a_word_is_made_up_for_in_the_next_step() -> None:
    job = Job()
    job.end(0, code=0)
    job.tell(PeerFault(rank=1, generation=1, reason="reset"))

    effects = job.tell(waits(1), waits(2))

    assert job.machine.view.live == (1, 2)
    assert "view.change" in events(effects)
    decisions = decisions_of(job.tell(waits(1, generation=3), waits(2, generation=3)))
    assert decisions[1].targets == ((1, ((0, 0), (1, 0))), (2, ((2, 0),)))


def test_what_is_said_in_a_generation_of_another_coordinator_counts_nothing_here() -> None:
    """It is a later one, which this coordinator has never begun."""
    job = Job()
    job.end(2)

    hinted = job.tell(PeerFault(rank=1, generation=1001, reason="reset"))
    early = job.tell(waits(0, (0, 0), (2, 0), generation=1001), waits(1))
    decided = decisions_of(job.tell(waits(0)))

    assert job.machine.view.generation == 2 and not hinted
    assert not decisions_of(early)
    assert sum(len(targets) for _, targets in decided[0].targets) == 3


def test_a_report_of_an_ended_rank_is_not_waited_for_to_change() -> None:
    job = Job()
    job.end(2)
    job.tell(waits(0, reduced=1), waits(1, reduced=1))  # both are told to commit
    job.tell(Farewell(rank=0, generation=2, step=1))

    effects = job.tell(waits(1, step=1))  # its script goes on

    assert exit_code(effects) == 1


def test_a_rank_of_another_world_is_not_heard() -> None:
    job = Job()

    assert job.tell(waits(7), ContextBuffer(rank=9, incarnation=0, contexts=())) == []
    assert job.end(8) == []


def test_thousands_have_longer_to_answer_before_they_are_told_again() -> None:
    assert [resend_after(many) for many in (1, RESEND_RANKS)] == [RESEND_AFTER_S] * 2
    assert resend_after(5 * RESEND_RANKS) == 5 * RESEND_AFTER_S
