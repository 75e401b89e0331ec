"""The answers of one launcher's vote to candidates, and when it may stand itself."""

from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.timeouts import LEASE_S, STAND_LEAST_S
from rendezvous.consensus.voter import Voter
from rendezvous.protocol.register_messages import Granted, Lead, Prepare, Prepared, Rejected

THREE = Configuration(1, 1, ("a", "b", "c"))
CANDIDATE = Prepare(ballot=(2, "c"), configuration=THREE.plain())


def _follower(at_s: float) -> Voter:
    """One that has granted its leader a lease then."""
    voter = Voter("b", THREE, 0.0)
    lead = Lead(ballot=(1, "a"), number=1, sent_at=at_s)
    assert isinstance(voter.follow("a", lead, at_s), Granted)
    return voter


def test_within_a_lease_that_it_has_granted_a_voter_promises_nothing_to_others() -> None:
    voter = _follower(5.0)

    within = voter.prepare("c", CANDIDATE, 5.0 + LEASE_S - 0.1)
    after = voter.prepare("c", CANDIDATE, 5.0 + LEASE_S + 0.1)

    assert isinstance(within, Rejected) and abs(within.hold_s - 0.1) < 1e-6
    assert isinstance(after, Prepared)


def test_its_leader_may_ask_it_in_a_newer_ballot_at_any_time() -> None:
    again = Prepare(ballot=(3, "a"), configuration=THREE.plain())

    assert isinstance(_follower(5.0).prepare("a", again, 5.1), Prepared)


def test_it_stands_no_sooner_than_a_while_after_its_lease() -> None:
    voter = _follower(5.0)
    voter.chance = 0.0
    voter.wait(5.0)

    assert voter.may_stand_at == 5.0 + LEASE_S + STAND_LEAST_S
