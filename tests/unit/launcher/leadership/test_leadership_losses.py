"""Losses that count against a node, when the launcher that has counted them is lost itself."""

from recoverrun.launcher.leadership.acts import CutOff, Departed, Follow
from recoverrun.launcher.leadership.leadership import Leadership
from recoverrun.launcher.leadership.loss_news import leave
from rendezvous.consensus.register_events import Part
from rendezvous.membership.flapping import HeldOff
from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.records import PART, Record
from tests.unit.agreeing_launchers import NAMES, Launchers


def _coordinates(job: Launchers) -> Leadership:
    (leader,) = {job.machines[name].leader for name in job.names if job.alive[name]}
    return job.machines[leader]


def _held_off(job: Launchers, node: str) -> bool:
    """True if a launcher on `node` that comes again now has to wait."""
    join = Join(
        run_id="job", node=node, incarnation="new", node_rank=-1, nproc=2, version="1",
        address="127.0.0.1",
    )  # fmt: skip
    return isinstance(_coordinates(job).flapping_nodes.judge(join, job.now), HeldOff)


def _leave(job: Launchers, name: str) -> None:
    machine = job.machines[name]
    job.carry_out(name, leave(machine.flapping_nodes, name, "SIGTERM was sent", machine.callees()))


def test_the_next_coordinator_knows_whom_the_last_one_lost_and_that_it_was_lost() -> None:
    job = Launchers()
    job.kill("d")
    job.run(0.2)
    job.kill("a")
    job.run(1.0)

    assert _coordinates(job).own != "a"
    assert _held_off(job, "node-d") and _held_off(job, "node-a")
    assert not _held_off(job, "node-b") and not _held_off(job, "node-c")


def test_a_new_coordinator_tells_all_of_a_leave_that_the_last_one_could_not_tell_of() -> None:
    job = Launchers(tuple("abcdefg"))
    _leave(job, "b")  # it is connected to five, and "a" is lost before it says a word of it
    job.run(0.1)
    job.kill("b")
    job.kill("a")
    job.run(3.0)

    assert len(_coordinates(job).attempt.members) == 5
    for name in "cdefg":
        lost = [one.node for one in job.machines[name].flapping_nodes.strikes(job.now)]
        assert lost == ["node-a"], name


def test_a_member_that_the_last_coordinator_let_in_is_counted_by_the_next_one() -> None:
    job = Launchers()
    job.kill("a")
    job.run(3.0)
    leader = _coordinates(job).own
    lost = next(name for name in ("b", "c", "d") if name != leader)
    job.kill(lost)
    job.run(0.5)

    assert _held_off(job, f"node-{lost}")
    said = [act for act in job.acts[leader] if isinstance(act, Record)]
    assert not [act for act in said if act.fields.get("event") == "node.lemon"]  # the first time


def test_who_leaves_as_planned_is_not_held_off() -> None:
    job = Launchers()
    _leave(job, "d")
    job.carry_out("a", job.machines["a"].tell_register(Part("d"), job.now))
    job.run(0.5)
    job.kill("d", proved=False)  # its process ends, and nobody has to be told
    job.kill("a")
    job.run(1.0)

    assert _held_off(job, "node-a") and not _held_off(job, "node-d")


def test_a_coordinator_that_leaves_as_planned_is_not_held_off() -> None:
    job = Launchers()
    _leave(job, "a")
    job.run(0.1)
    job.kill("a")
    job.run(1.0)

    assert _coordinates(job).own != "a"
    assert not _held_off(job, "node-a")


def test_the_next_coordinator_and_all_journals_know_why_the_last_one_has_left() -> None:
    job = Launchers()
    _leave(job, "a")
    job.run(0.1)
    told = [act for act in job.acts["c"] if isinstance(act, Record) and act.event == "node.lost"]
    job.kill("a")
    job.run(1.0)

    leader = _coordinates(job).own
    (takeover,) = job.succeeded(leader)
    (said,) = [
        act for act in job.acts[leader] if isinstance(act, Record) and act.event == "leader.succeed"
    ]
    assert takeover.vacancy is not None
    assert takeover.vacancy.lost == (("node-a", (0, 1), "SIGTERM was sent"),)
    assert said.reason == f"node node-{leader} coordinates this run now: SIGTERM was sent"
    assert [record.reason for record in told] == ["node-a: SIGTERM was sent"]
    assert told[0].fields == {"name": "node-a", "ranks": [0, 1], PART: True}


def test_after_all_were_suspended_the_leader_is_the_same_and_nobody_is_lost() -> None:
    """The leader may go on after the others: nobody stands for what is its own standstill."""
    job = Launchers()
    job.run(2.0)
    job.now += 20.0
    job.alive["a"] = False
    job.run(2.0)
    job.alive["a"] = True
    job.run(8.0)

    assert {job.machines[name].leader for name in NAMES} == {"a"}
    acts = [act for name in NAMES for act in job.acts[name]]
    assert not [act for act in acts if isinstance(act, CutOff | Departed | Follow)]
