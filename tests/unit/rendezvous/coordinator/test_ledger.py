"""INV-1 as arithmetic: is the step whole, and if not, what is missing or wrong?"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous.coordinator.ledger import Ledger
from rendezvous.protocol.quota import identities, share_out


def _ledger(microbatches: int = 2) -> Ledger:
    return Ledger(slots=(0, 1), microbatches=microbatches)


def test_a_step_is_whole_when_every_identity_is_held_once() -> None:
    ledger = _ledger()
    ledger.credit(0, [(0, 0), (0, 1), (1, 1)])
    ledger.credit(1, [(1, 0)])

    assert ledger.whole()
    assert ledger.total == 4


def test_a_credit_is_a_total_and_replaces_the_one_before() -> None:
    ledger = _ledger()
    ledger.credit(0, [(0, 0), (0, 1)])
    ledger.credit(0, [(0, 0)])

    assert ledger.missing() == ((0, 1), (1, 0), (1, 1))


def test_an_identity_that_two_replicas_hold_is_a_fault() -> None:
    ledger = _ledger()
    ledger.credit(0, [(0, 0), (1, 0)])
    ledger.credit(1, [(1, 0)])

    assert "replicas 0 and 1 both computed (1, 0)" in ledger.fault()
    assert not ledger.whole()


def test_an_identity_of_no_slot_is_a_fault() -> None:
    ledger = _ledger()
    ledger.credit(0, [(0, 2)])

    assert "not of this step" in ledger.fault()


def test_what_is_missing_after_any_loss_can_be_dealt_out_to_a_whole_step() -> None:
    for replicas, microbatches in itertools.product(range(1, 5), range(1, 4)):
        slots = tuple(range(replicas))
        for count in range(1, replicas + 1):
            for live in itertools.combinations(slots, count):
                ledger = Ledger(slots=slots, microbatches=microbatches)
                for slot in live:
                    ledger.credit(slot, identities((slot,), microbatches))
                extra = share_out(ledger.missing(), dict.fromkeys(live, microbatches))
                for slot in live:
                    ledger.credit(slot, ledger.credits[slot] | set(extra[slot]))

                assert ledger.whole(), (slots, live)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_missing_and_held_make_the_step(data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, 6))
    microbatches = data.draw(st.integers(1, 6))
    everything = identities(range(replicas), microbatches)
    ledger = Ledger(slots=tuple(range(replicas)), microbatches=microbatches)
    owners = {identity: data.draw(st.integers(-1, replicas - 1)) for identity in everything}
    for slot in range(replicas):
        ledger.credit(slot, [identity for identity in everything if owners[identity] == slot])

    held = [identity for identity in everything if owners[identity] >= 0]
    assert sorted([*held, *ledger.missing()]) == list(everything)
    assert ledger.fault() == ""
    assert ledger.whole() == (len(held) == len(everything))
