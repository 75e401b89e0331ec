"""Silence is a loss, and our own standstill is nobody's."""

from rendezvous.consensus import timeouts
from rendezvous.membership.failure_detector import Detector, Forget, Heard, Silent, Tick
from rendezvous.protocol.heartbeat import (
    FLAP_S,
    QUICK,
    RESENT_WITHIN_S,
    SLOW,
    SLOWEST,
    heartbeat,
)


def _ticks(detector: Detector, begin: float, end: float) -> list[Silent]:
    """The loop as it runs: awake four times a second."""
    found: list[Silent] = []
    now = begin
    while now <= end:
        found += detector.step(Tick(), now)
        now += 0.25
    return found


def test_a_peer_is_lost_after_its_silence_and_only_once() -> None:
    detector = Detector()
    detector.step(Heard(b"a"), 0.0)

    assert detector.deadline() == QUICK.silent_s
    assert _ticks(detector, 0.25, QUICK.silent_s - 0.25) == []
    assert _ticks(detector, QUICK.silent_s, 9.0) == [Silent(b"a", QUICK.silent_s)]
    assert detector.deadline() is None


def test_any_message_is_a_sign_of_life() -> None:
    detector = Detector()

    for now in range(10):
        assert detector.step(Heard(b"a"), now * 0.9) == []
        assert detector.step(Tick(), now * 0.9 + 0.8) == []


def test_whoever_left_is_not_lost() -> None:
    detector = Detector()
    detector.step(Heard(b"a"), 0.0)
    detector.step(Forget(b"a"), 0.5)

    assert _ticks(detector, 0.5, 9.0) == []


def test_nobody_is_blamed_for_the_time_that_we_stood_still() -> None:
    detector = Detector()
    detector.step(Heard(b"a"), 0.0)
    detector.step(Tick(), 0.5)

    assert detector.step(Tick(), 60.5) == []
    assert _ticks(detector, 60.75, 60.0 + QUICK.silent_s - 0.25) == []
    silent = _ticks(detector, 60.0 + QUICK.silent_s, 60.25 + QUICK.silent_s)
    assert [loss.peer for loss in silent] == [b"a"]


def test_several_losses_come_in_one_order() -> None:
    detector = Detector()
    for peer in (b"c", b"a", b"b"):
        detector.step(Heard(peer), 0.0)

    assert [loss.peer for loss in _ticks(detector, 0.25, QUICK.silent_s)] == [b"a", b"b", b"c"]


def test_many_launchers_speak_more_seldom_and_are_waited_for_longer() -> None:
    detector = Detector(heartbeat(500))
    detector.step(Heard(b"a"), 0.0)

    assert [heartbeat(many) for many in (1, 2, 499, 500, 1999)] == [QUICK] * 3 + [SLOW] * 2
    assert [heartbeat(many) for many in (2000, 5000)] == [SLOWEST] * 2
    assert QUICK.silent_s < SLOW.silent_s < SLOWEST.silent_s
    assert _ticks(detector, 0.25, SLOW.silent_s - 0.25) == []
    assert _ticks(detector, SLOW.silent_s, SLOW.silent_s) == [Silent(b"a", SLOW.silent_s)]


def test_a_link_that_flaps_costs_nobody_its_place() -> None:
    """The last sign may have come a beat before the flap; after it the kernel waits, too."""
    for one in (QUICK, SLOW, SLOWEST):
        assert one.beat_s + FLAP_S + RESENT_WITHIN_S < one.silent_s


def test_voters_stand_after_a_flap_and_after_the_leader_has_left_out_who_is_silent() -> None:
    # What a voter heard of its leader last may be a beat older than what that heard of it.
    stand_s = (timeouts.LEASE_S + timeouts.STAND_LEAST_S - timeouts.BEAT_S) * (1 - timeouts.MARGIN)
    in_turn_s = timeouts.LEASE_S + timeouts.STAND_LEAST_S + timeouts.STAND_SPREAD_S

    assert stand_s > FLAP_S + RESENT_WITHIN_S
    assert stand_s > QUICK.silent_s
    assert in_turn_s < timeouts.ALONE_S < timeouts.FENCE_S


def test_leases_stay_open_from_one_sign_of_life_to_the_next() -> None:
    """A lease is renewed every beat of the voters, and both clocks may be off."""
    least_s = (timeouts.LEASE_S * (1 - timeouts.MARGIN) - timeouts.BEAT_S) * (1 - timeouts.MARGIN)

    assert all(one.beat_s < least_s - 0.3 < one.silent_s for one in (QUICK, SLOW, SLOWEST))
