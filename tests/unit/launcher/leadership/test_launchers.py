"""Orders of the coordinator go to the launchers that host their ranks and live."""

from recoverrun.launcher.leadership.launchers import AttemptMembers, is_past
from rendezvous.protocol.arrival_messages import Ready, StartAgain
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.incarnations import incarnation
from tests.unit.hosted_job import Job, of


def members() -> AttemptMembers:
    """Of two launchers with two ranks each."""
    (start, *_) = of(Job().form(), Start).values()
    assert isinstance(start, Start)
    found = AttemptMembers()
    found.take(start)
    return found


def test_all_launchers_hear_of_a_start_to_remember_it() -> None:
    start = StartAgain(ranks=(1,), birth=1, often=1, reason="r")

    assert {e.to: e.message for e in members().order(start)} == {"own": start, "far": start}


def test_nobody_is_asked_to_start_the_ranks_of_a_launcher_that_was_given_up() -> None:
    found = members()
    found.evicted.add("far")

    assert [e.to for e in found.order(StartAgain(ranks=(1, 2), birth=1, often=1, reason="r"))] == [
        "own"
    ]


def test_a_later_birth_is_of_the_same_attempt() -> None:
    ready = Ready(rank=0, incarnation=incarnation(2, 3))

    assert [is_past(ready, attempt) for attempt in (1, 2, 3)] == [True, False, True]
