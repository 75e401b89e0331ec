"""A launcher with the place of a lost one: how it becomes a member, and how others know of it."""

from dataclasses import replace

import pytest

from recoverrun.launcher.leadership.acts import CutOff, Departed
from recoverrun.launcher.leadership.leadership import OUTSIDE_S, Leadership
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.membership.vacant_places import start_of, with_peer
from rendezvous.protocol.formation_messages import Start
from tests.unit.agreeing_launchers import NAMES, Launchers


def _replaced(job: Launchers, name: str) -> Start:
    """The launcher "e" has the place of `name`."""
    place, start = NAMES.index(name), job.start("a", 0)
    return with_peer(replace(start, succeeds=True), place, ("e", "127.0.0.1", 1, 2), "node-e", 1)


def _admitted(job: Launchers, *told: str) -> Leadership:
    """A launcher takes the place of "d", which is lost; those of `told` hear of it."""
    job.kill("d")
    job.run(1.0)
    start = _replaced(job, "d")
    newcomer = Leadership(own="e", chance=lambda: 0.9)
    job.machines["e"], job.alive["e"], job.acts["e"] = newcomer, True, []
    job.names = (*NAMES, "e")
    own = start_of(start, "e", "a")
    assert own is not None
    job.carry_out("e", newcomer.join(own, policy=USUAL, several=True, now=job.now))
    for name in told:
        job.carry_out(name, job.machines[name].hear("a", start, job.now))
    job.run(3.0)
    return newcomer


def test_who_takes_a_lost_ones_place_becomes_a_member_without_any_state() -> None:
    job = Launchers()
    newcomer = _admitted(job, "a", "b", "c")

    came = [act for act in job.acts["a"] if isinstance(act, Departed) and act.came]
    assert [act.came for act in came] == [("e",)]
    assert newcomer.leader == "a" and newcomer.pings
    assert not [act for act in job.acts["e"] if isinstance(act, CutOff)]
    assert not job.machines["b"].attempt.strangers
    assert job.machines["c"].attempt.hosts("e", 7)
    (loss,) = newcomer.flapping_nodes.strikes(job.now)  # which was before its time
    assert [who for who, _ in loss.lost] == ["d"]


def test_a_member_whose_place_nobody_was_told_of_says_it_to_the_next_coordinator() -> None:
    job = Launchers()
    _admitted(job, "a")
    assert job.machines["b"].attempt.strangers == {"e"}

    job.kill("a")
    job.run(3.0)

    ((takeover,),) = [job.succeeded(name) for name in job.names if job.succeeded(name)]
    leader = next(name for name in job.names if job.succeeded(name))
    assert takeover.vacancy is not None
    assert takeover.vacancy.lost == (("node-a", (0, 1), "its launcher has ended"),)
    assert job.machines[leader].attempt.hosts("e", 6)


def test_a_launcher_with_a_place_that_nobody_lets_in_leaves() -> None:
    job = Launchers()
    own = start_of(_replaced(job, "d"), "e", "a")
    assert own is not None
    newcomer = Leadership(own="e", chance=lambda: 0.9)
    newcomer.join(own, policy=USUAL, several=True, now=0.0)

    assert not [act for act in newcomer.tick(OUTSIDE_S - 0.1) if isinstance(act, CutOff)]
    (cut,) = [act for act in newcomer.tick(OUTSIDE_S) if isinstance(act, CutOff)]
    assert "let it in" in cut.reason


def _another_attempt(job: Launchers, lost: str, news: str) -> None:
    """The next attempt forms without `lost` launchers, and with new ones in their places."""
    for name in lost:
        job.kill(name)
    job.run(2.0)
    for name in news:
        job.machines[name] = Leadership(own=name, chance=lambda: 0.9)
        job.alive[name], job.acts[name] = True, []
    job.names = (*(name for name in NAMES if name not in lost), *news)
    job.acts["a"].clear()
    for name in job.names:
        job.join(name, attempt=1)


def test_two_launchers_that_take_places_in_one_new_attempt_are_both_admitted() -> None:
    job = Launchers()

    _another_attempt(job, lost="cd", news="ef")
    job.run(5.0)

    departed = [act for act in job.acts["a"] if isinstance(act, Departed)]
    assert not [act for act in departed if act.gone]
    assert sorted(name for act in departed for name in act.came) == ["e", "f"]
    assert all(job.machines[name].pings for name in "ef")


@pytest.mark.parametrize("member_s", [0.0, 5.0])
def test_one_of_them_that_dies_before_or_once_it_is_a_member_is_lost(member_s: float) -> None:
    job = Launchers()
    _another_attempt(job, lost="cd", news="ef")
    job.run(member_s)

    job.kill("f")
    job.run(5.0)

    gone = [act.gone for act in job.acts["a"] if isinstance(act, Departed) and act.gone]
    assert gone == [(("f", "its launcher has ended"),)]
