"""Launchers that agree on another coordinator: their production machines on a network of lists."""

import pytest

from recoverrun.launcher.leadership.acts import CutOff, Departed, Follow
from recoverrun.launcher.network.frames import Envelope
from rendezvous.consensus import timeouts
from rendezvous.protocol.formation_messages import Beat
from rendezvous.protocol.heartbeat import QUICK
from rendezvous.protocol.messages import Committed, ContextBuffer, Topology
from rendezvous.protocol.records import Record
from rendezvous.protocol.register_messages import Statement
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.protocol.views import View
from tests.unit.agreeing_launchers import NAMES, STEP_S, Launchers


def _topology(rank: int) -> Topology:
    replicas = tuple((2 * slot, 2 * slot + 1) for slot in range(len(NAMES)))
    return Topology(rank=rank, generation=1, strategy="fake", replicas=replicas)


def test_the_founder_coordinates_and_nobody_takes_over() -> None:
    job = Launchers()

    job.run(10.0)

    assert {machine.leader for machine in job.machines.values()} == {"a"}
    assert not any(job.succeeded(name) for name in NAMES)


def test_a_follower_is_told_that_its_coordinator_has_begun_and_says_no_more() -> None:
    job = Launchers()
    job.kill("a")
    job.run(1.0)
    leader = next(name for name in NAMES if job.succeeded(name))
    machine = job.machines[leader]
    statement = Statement(term=2, attempt=0, begun=True, part=0, parts=1, frames=())

    (answer,) = machine.hear("d", statement, job.now)

    assert isinstance(answer, Envelope) and answer.to == "d"
    assert answer.message == Beat(node=f"node-{leader}", incarnation=leader, term=2)
    # Nothing but pings and leases is left: no machine is due before the next of them.
    assert all(job.machines[name].pings for name in NAMES[1:])
    assert all((job.machines[name].deadline() or 0) > job.now - STEP_S for name in NAMES[1:])


def test_a_successor_begins_once_everybody_has_told_what_it_remembers() -> None:
    job = Launchers()
    for rank, name in ((2, "b"), (5, "c"), (7, "d")):
        job.machines[name].said(_topology(rank), job.now)
    job.machines["b"].heard(View(generation=1, live=(), live_ranks=tuple(range(8)), losses=()))

    job.kill("a")
    job.run(1.0)

    ((takeover,),) = [job.succeeded(name) for name in NAMES if job.succeeded(name)]
    assert takeover.vacancy is not None
    assert takeover.vacancy.lost == (("node-a", (0, 1), "its launcher has ended"),)
    told = {m.rank for standing in takeover.standings for m in standing if hasattr(m, "rank")}
    assert told == {2, 5, 7}
    leader = next(name for name in NAMES if job.succeeded(name))
    followers = [name for name in NAMES[1:] if name != leader]
    assert all(Follow(leader) in job.acts[name] for name in followers)


def test_losing_one_leader_after_another_ends_with_one_that_goes_on_alone() -> None:
    job = Launchers()
    leaders = []
    for _ in range(3):
        leader = next(job.machines[name].leader for name in NAMES if job.alive[name])
        leaders.append(leader)
        job.kill(leader)
        job.run(2.0)

    (last,) = [name for name in NAMES if job.alive[name]]
    assert len(set(leaders)) == 3
    (takeover,) = job.succeeded(last)
    assert takeover.vacancy is not None and len(takeover.vacancy.lost) == 3


def test_a_silent_leader_is_left_out_and_learns_it() -> None:
    job = Launchers()
    job.alive["a"] = False
    job.run(10.0)
    job.alive["a"] = True
    job.run(3.0)

    assert sum(len(job.succeeded(name)) for name in NAMES) == 1
    assert any(isinstance(act, CutOff) for act in job.acts["a"])


def test_a_member_that_is_gone_is_told_to_the_coordinator_host_of_a_leader_that_stays() -> None:
    job = Launchers()

    job.kill("c")
    job.run(1.0)

    departed = [act for act in job.acts["a"] if isinstance(act, Departed)]
    assert departed == [Departed((("c", "its launcher has ended"),))]
    assert job.machines["b"].leader == "a"


def test_with_a_silent_member_it_is_told_for_how_long_it_was_not_heard() -> None:
    job = Launchers()
    job.run(2.0)

    job.alive["c"] = False
    job.run(QUICK.silent_s + 2.0)

    (departed,) = [act for act in job.acts["a"] if isinstance(act, Departed)]
    assert departed.gone == (("c", "its launcher was silent for too long"),)
    ((name, silent_s),) = departed.silent_s
    assert name == "c" and QUICK.silent_s <= silent_s <= QUICK.silent_s + 1.0


def test_a_successor_is_told_for_how_long_its_leader_was_not_heard() -> None:
    job = Launchers()
    job.run(2.0)
    silent_at = job.now

    job.alive["a"] = False
    job.run(timeouts.FENCE_S)

    ((takeover,),) = [job.succeeded(name) for name in NAMES if job.succeeded(name)]
    assert takeover.vacancy is not None
    silent_s = takeover.vacancy.silent_s["node-a"]
    assert QUICK.silent_s <= silent_s <= job.now - silent_at + 1.0


def test_two_of_four_silent_at_once_leave_nobody_who_may_go_on() -> None:
    job = Launchers()
    job.alive["a"] = job.alive["b"] = False

    job.run(timeouts.FENCE_S + 4.0)

    assert not job.succeeded("c") and not job.succeeded("d")
    assert any(isinstance(act, CutOff) for act in job.acts["c"])
    assert any(isinstance(act, CutOff) for act in job.acts["d"])


def test_a_launcher_that_hears_nobody_is_told_the_ways_to_go_on() -> None:
    job = Launchers(("a", "b"))
    job.alive["a"] = False

    job.run(timeouts.FENCE_S + 2.0)

    assert not job.succeeded("b")
    (cut,) = [act for act in job.acts["b"] if isinstance(act, CutOff)]
    for way in ("proved dead", "a witness", "--on-partition=continue"):
        assert way in cut.reason


@pytest.mark.parametrize("many", [2, 3])
def test_one_that_may_go_on_in_silence_does_and_is_followed_by_none_that_wakes(many: int) -> None:
    job = Launchers(NAMES[:many], on_silence="continue")
    others, last = NAMES[: many - 1], NAMES[many - 1]
    for name in others:
        job.alive[name] = False
    job.run(timeouts.ALONE_S + 3.0)
    assert job.succeeded(last)
    (notice,) = [act for act in job.acts[last] if "alone" in getattr(act, "reason", "")]
    assert isinstance(notice, Record)

    for name in others:
        job.alive[name] = True
    job.run(9.0)

    for name in others:
        assert any(isinstance(act, CutOff) for act in job.acts[name]), name
    assert not any(isinstance(act, CutOff) for act in job.acts[last])


def test_nobody_goes_on_alone_while_another_is_heard() -> None:
    job = Launchers(NAMES[:4], on_silence="continue")
    job.alive["a"] = job.alive["b"] = False

    job.run(timeouts.FENCE_S + 4.0)

    assert not job.succeeded("c") and not job.succeeded("d")


def test_a_leader_that_dies_between_two_attempts_leaves_a_job_that_begins_again() -> None:
    job = Launchers()
    job.machines["b"].leave_attempt(1)

    job.kill("a")
    job.run(1.0)

    ((takeover,),) = [job.succeeded(name) for name in NAMES if job.succeeded(name)]
    assert takeover.vacancy is None and takeover.attempt == 1


def test_nobody_speaks_for_the_ranks_of_another() -> None:
    job = Launchers()
    job.machines["b"].said(_topology(7), job.now)  # a rank of "d"

    job.kill("a")
    job.run(1.0)

    ((takeover,),) = [job.succeeded(name) for name in NAMES if job.succeeded(name)]
    assert not any(takeover.standings)


def test_what_a_lost_launcher_had_entrusted_to_others_is_told() -> None:
    job = Launchers()
    context_buffer = ContextBuffer(rank=1, incarnation=0, contexts=(b"context",))
    holders = job.machines["a"].context_holders()
    for holder in holders:
        job.carry_out(holder, job.machines[holder].hear("a", context_buffer, job.now))
    job.machines["d"].hear("c", context_buffer, job.now)  # not for "c" to entrust

    job.kill("a")
    job.run(1.0)

    ((takeover,),) = [job.succeeded(name) for name in NAMES if job.succeeded(name)]
    assert [m for standing in takeover.standings for m in standing] == [context_buffer] * len(
        holders
    )


def test_what_was_answered_by_the_store_is_known_to_the_successor() -> None:
    job = Launchers()
    call = StoreCall(
        rank=0, serial=1, generation=0, op="add", keys=("n",), values=(), amount=5, timeout_s=5.0
    )
    store = job.machines["a"].store
    for effect in store.call(call, job.now):
        assert not isinstance(effect, StoreAnswer), "answered before the followers had it"
        job.mail.append(("a", effect.to, effect.message))
    job.run(0.2)
    assert [act for act in job.acts["a"] if isinstance(act, StoreAnswer)]

    job.kill("a")
    job.run(1.0)

    leader = next(name for name in NAMES if job.succeeded(name))
    again = job.machines[leader].store.call(call, job.now)
    job.mail.extend((leader, e.to, e.message) for e in again if not isinstance(e, StoreAnswer))
    job.run(0.2)
    answers = [e for e in (*again, *job.acts[leader]) if isinstance(e, StoreAnswer)]
    assert [answer.number for answer in answers] == [5]


def _step(rank: int, step: int) -> Committed:
    return Committed(
        rank=rank, generation=1, step=step, done=((1, 0),), redone=(), total=2, digest=""
    )  # fmt: skip


@pytest.mark.parametrize("live", [range(4), range(2, 4)], ids=["with the leader's", "without"])
def test_steps_with_workers_of_a_silent_leader_show_that_it_lives(live: range) -> None:
    job = Launchers(("a", "b"))
    view = View(generation=1, live=(0, 1), live_ranks=tuple(live), losses=())
    job.machines["b"].heard(view)
    job.alive["a"] = False

    for step in range(int(2 * timeouts.FENCE_S)):
        job.run(1.0)
        job.carry_out("b", job.machines["b"].said(_step(2, step), job.now))

    cut = any(isinstance(act, CutOff) for act in job.acts["b"])
    assert cut == (0 not in live)
    job.run(timeouts.FENCE_S + 2.0)
    assert any(isinstance(act, CutOff) for act in job.acts["b"])


def test_a_silent_member_stays_while_its_workers_train_and_no_longer() -> None:
    job = Launchers(("a", "b", "c"))
    view = View(generation=1, live=(0, 1, 2), live_ranks=tuple(range(6)), losses=())
    for name in ("a", "b"):
        job.machines[name].heard(view)
    job.alive["c"] = False

    for step in range(20):
        job.run(1.0)
        for rank, name in ((0, "a"), (2, "b")):
            job.carry_out(name, job.machines[name].said(_step(rank, step), job.now))
    assert not any(isinstance(act, Departed) for act in job.acts["a"])

    job.run(QUICK.silent_s + 1.0)
    assert any(isinstance(act, Departed) for act in job.acts["a"])


def test_no_step_makes_up_for_a_death_that_is_proved() -> None:
    job = Launchers(("a", "b", "c"))
    view = View(generation=1, live=(0, 1, 2), live_ranks=tuple(range(6)), losses=())
    job.machines["b"].heard(view)
    job.kill("a")

    job.carry_out("b", job.machines["b"].said(_step(2, 0), job.now))
    job.run(2.0)

    assert any(job.succeeded(name) for name in ("b", "c"))
