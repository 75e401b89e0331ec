"""Candidates against a leader, and what a leader does about them."""

from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import Admit, Effect, Heard, Part, Tick, To
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    ConfigurationChange,
    Granted,
    Lead,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Rejected,
)

FOUR = Configuration(1, 1, ("a", "b", "c", "d"))


def _asked(effects: list[Effect]) -> list[Prepare]:
    """The requests for a promise among `effects`."""
    return [e.message for e in effects if isinstance(e, To) and isinstance(e.message, Prepare)]


def test_who_becomes_a_voter_does_not_stand_against_the_leader_that_made_it_one() -> None:
    fourth = Register(own="d", configuration=FOUR, now=0.0)
    for beat in range(20):
        fourth.step(Tick(0.0), 0.5 * beat)

    change = ConfigurationChange(number=2, leader="a", out=("b",), news=())
    asked = _asked(fourth.step(Heard("a", change), 10.0))
    asked += _asked(fourth.step(Tick(0.0), 10.5)) + _asked(fourth.step(Tick(0.0), 11.0))

    assert "d" in fourth.configuration.voters
    assert not asked


def _leader() -> Register:
    """The leader of four, which two of three voters follow."""
    leader = Register(own="a", configuration=FOUR, now=0.0)
    (first, *_) = _asked(leader.step(Tick(0.0), 0.0))
    promise = Prepared(ballot=first.ballot, number=1, accepted_in=(0, ""), accepted=(0, 0, (), ""))
    effects = leader.step(Heard("b", promise), 0.1)
    lead = next(e.message for e in effects if isinstance(e, To) and isinstance(e.message, Lead))
    granted = Granted(ballot=lead.ballot, number=1, sent_at=lead.sent_at)
    leader.step(Heard("b", granted), 0.2)
    assert leader.leased(0.2)
    return leader


def test_a_leader_that_a_quorum_follows_asks_again_where_a_voter_has_promised_more() -> None:
    leader = _leader()

    rejected = Rejected(ballot=(1, "a"), promised=(7, "c"), hold_s=0.0)
    effects = leader.step(Heard("c", rejected), 0.3)

    assert {prepare.ballot for prepare in _asked(effects)} == {(8, "a")}
    assert leader.leads and leader.leased(0.3)


def test_a_leader_whose_lease_has_lapsed_gives_way() -> None:
    leader = _leader()

    rejected = Rejected(ballot=(1, "a"), promised=(7, "c"), hold_s=0.0)
    effects = leader.step(Heard("c", rejected), 3.0)

    assert not _asked(effects)
    assert not leader.leads


def test_a_leader_that_hears_no_quorum_any_more_asks_nobody_for_anything() -> None:
    leader = _leader()
    leader.step(Admit("e"), 0.3)

    said: list[object] = []
    for beat in range(1, 20):
        effects = leader.step(Tick(0.0), 0.3 + 0.5 * beat)
        said += [e.message for e in effects if isinstance(e, To) and beat > 5]

    assert said and all(isinstance(message, Ping) for message in said)
    assert leader.deadline() > 9.8 + 0.1


def test_once_it_hears_one_again_it_goes_on_and_blames_nobody_for_the_silence() -> None:
    leader = _leader()
    for beat in range(12):
        leader.step(Tick(0.0), 1.0 + 0.5 * beat)

    effects = leader.step(Heard("b", Ping(number=1, sent_at=0.0, undecided=False)), 7.0)

    told = [(e.node, type(e.message)) for e in effects if isinstance(e, To)]
    assert ("b", Lead) in told and ("c", Lead) in told
    assert not [one for one in told if one[1] is Accept]


def test_a_member_that_a_leader_is_about_to_leave_out_is_never_told_that_it_is_kept() -> None:
    leader = _leader()
    leader.step(Part("d"), 0.3)
    asks = Ping(number=1, sent_at=0.0, undecided=False)

    proposed = leader.step(Heard("d", asks), 0.4)
    # In a newer ballot it has no proposal, and will find its own again.
    leader.step(Heard("c", Rejected(ballot=(1, "a"), promised=(7, "c"), hold_s=0.0)), 0.5)
    renewed = leader.step(Heard("d", asks), 0.6)

    for effects in (proposed, renewed):
        (pong,) = [e.message for e in effects if isinstance(e, To) and isinstance(e.message, Pong)]
        assert not pong.kept


def test_a_newcomer_is_kept_once_all_that_live_know_of_it() -> None:
    leader = _leader()
    (proposal,) = {
        e.message.configuration
        for e in leader.step(Admit("e"), 0.3)
        if isinstance(e, To) and isinstance(e.message, Accept)
    }
    leader.step(Heard("b", Accepted(ballot=(1, "a"), number=proposal[0])), 0.4)
    # Five vote now: a newcomer and the fourth have made no promise yet.
    (asked, *_) = _asked(leader.step(Tick(0.0), 0.8))
    for voter in ("b", "c", "d", "e"):
        promise = Prepared(
            ballot=asked.ballot, number=2, accepted_in=(0, ""), accepted=(0, 0, (), "")
        )
        leader.step(Heard(voter, promise), 0.8)
    for voter in ("b", "c"):
        leader.step(Heard(voter, Granted(ballot=asked.ballot, number=2, sent_at=0.8)), 0.8)

    kept = []
    for name in ("e", "b", "c", "e", "d", "e"):
        effects = leader.step(Heard(name, Ping(number=2, sent_at=0.8, undecided=False)), 0.9)
        kept += [e.message.kept for e in effects if isinstance(e, To) and type(e.message) is Pong]

    assert kept == [False, True, True, False, True, True]


def test_a_leader_s_lease_runs_from_when_it_asked_and_by_its_margin_less_than_it_was_given() -> (
    None
):
    leader = _leader()  # which had asked at 0.1

    assert leader.leased(0.1 + 2.42)
    assert not leader.leased(0.1 + 2.43)
