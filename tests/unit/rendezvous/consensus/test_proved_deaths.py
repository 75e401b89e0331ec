"""The consequences of the proof that other launchers are dead."""

import pytest

from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.electorate import Electorate
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import Cut, Dead, Effect, Enrolled, Heard, Tick, To
from rendezvous.consensus.timeouts import CONTACT_S, LEAP, STAND_NEXT_S
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    Granted,
    Lead,
    Ping,
    Pong,
    Prepare,
    Prepared,
)

FOUR = Configuration(1, 1, ("a", "b", "c", "d"))


def _said(effects: list[Effect], kind: type) -> list[tuple[str, object]]:
    """(to whom, what) of the messages of this kind."""
    return [(e.node, e.message) for e in effects if isinstance(e, To) and type(e.message) is kind]


def _member(own: str, until_s: float) -> Register:
    """A member that its leader has answered all the time."""
    member = Register(own=own, configuration=FOUR, now=0.0)
    now = 0.0
    while now < until_s:
        for _, ping in _said(member.step(Tick(0.0), now), Ping):
            assert isinstance(ping, Ping)
            pong = Pong(number=1, sent_at=ping.sent_at, kept=True)
            member.step(Heard("a", pong), now)
        lead = Lead(ballot=(1, "a"), number=1, sent_at=now)
        if own in FOUR.voters:
            member.step(Heard("a", lead), now)
        now += 0.1
    return member


def test_no_lease_is_granted_to_a_launcher_that_is_proved_dead() -> None:
    voter = _member("b", 5.0)
    stands = voter.step(Dead("a"), 5.0)

    late = voter.step(Heard("a", Lead(ballot=(9, "a"), number=1, sent_at=4.9)), 5.001)

    assert {to for to, _ in _said(stands, Prepare)} >= {"c"}
    assert not _said(late, Granted)
    assert voter.proposer is not None


def test_what_a_dead_launcher_knew_to_be_decided_is_learned_all_the_same() -> None:
    member = _member("d", 5.0)
    member.step(Dead("a"), 5.0)
    base = Configuration(2, 1, ("a", "c", "d"))
    following = Configuration(3, 1, ("a", "d"))

    accept = Accept(ballot=(1, "a"), base=base.plain(), configuration=following.plain())
    effects = member.step(Heard("a", accept), 5.1)

    assert member.configuration == base
    assert not _said(effects, Accepted)


def test_where_most_voters_are_dead_all_that_are_left_decide() -> None:
    third = _member("c", 5.0)
    third.step(Dead("a"), 5.0)

    asked = _said(third.step(Dead("b"), 5.0), Prepare)
    ((_, prepare),) = [one for one in asked if one[0] == "d"]
    assert isinstance(prepare, Prepare)
    promise = Prepared(
        ballot=prepare.ballot, number=1, accepted_in=(0, ""), accepted=(0, 0, (), "")
    )
    ((_, accept),) = [
        one for one in _said(third.step(Heard("d", promise), 5.2), Accept) if one[0] == "d"
    ]
    assert isinstance(accept, Accept)
    accepted = Accepted(ballot=accept.ballot, number=accept.configuration[0])
    effects = third.step(Heard("d", accepted), 5.3)

    (enrolled,) = [effect for effect in effects if isinstance(effect, Enrolled)]
    assert enrolled.configuration.members == ("c", "d")
    assert enrolled.configuration.number > LEAP


def test_who_was_not_answered_for_long_decides_nothing_without_the_voters() -> None:
    third = _member("c", 5.0)
    late_s = 5.0 + CONTACT_S + 0.6
    effects = third.step(Dead("a"), late_s) + third.step(Dead("b"), late_s)

    effects += third.step(Tick(0.0), late_s + 5 * STAND_NEXT_S)

    assert not [to for to, _ in _said(effects, Prepare) if to == "d"]


@pytest.mark.parametrize(("since_s", "alone"), [(4.5, True), (6.0, False)])
def test_the_last_one_goes_on_alone_if_its_leader_had_answered_it_just_before(
    since_s: float, alone: bool
) -> None:
    fourth = _member("d", 5.0)
    effects: list[Effect] = []
    for name in FOUR.members[:3]:
        effects += fourth.step(Dead(name), 5.0 + since_s)

    assert any(isinstance(effect, Enrolled) for effect in effects) is alone
    assert any(isinstance(effect, Cut) for effect in effects) is not alone


@pytest.mark.parametrize(("since_s", "alone"), [(0.5, True), (0.7, False)])
def test_who_was_told_of_the_first_configuration_may_have_been_told_late(
    since_s: float, alone: bool
) -> None:
    """Its leader has counted its silence since it said so, which a link that flaps holds up."""
    fourth = Register(own="d", configuration=FOUR, now=0.0)
    effects: list[Effect] = []
    for name in FOUR.members[:3]:
        effects += fourth.step(Dead(name), since_s)

    assert any(isinstance(effect, Enrolled) for effect in effects) is alone


def test_a_witness_is_never_proved_dead() -> None:
    watched = Configuration(1, 1, ("a", "b", "c", "d"), "w/a")

    assert Electorate(FOUR, {"a", "b"}).asked == ("c", "d")
    assert Electorate(FOUR, {"a"}).asked == ("a", "b", "c")
    assert not Electorate(watched, {"a", "b", "c"}).orphaned
