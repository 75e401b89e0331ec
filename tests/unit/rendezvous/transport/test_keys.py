"""Keys: whoever has one can show it; who has not, or speaks for another, cannot."""

import pytest

from rendezvous.transport import admission, rate_limited_log
from rendezvous.transport.admission import Admission, Refused
from rendezvous.transport.keys import BadKey, JobKey, incarnation_of, new_text, parse

KEY = parse(b"k" * 32)
ALICE, BOB = bytes(range(32)), bytes(range(1, 33))


def test_the_same_text_is_the_same_key_everywhere() -> None:
    assert parse(b"k" * 32 + b"\r\n").listener_secret() == KEY.listener_secret()
    assert parse(b"j" * 32).listener_secret() != KEY.listener_secret()
    assert len(KEY.listener_secret()) == 32


def test_a_new_key_is_a_good_key_and_a_new_one() -> None:
    assert parse(new_text().encode()) != parse(new_text().encode())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"x" * 31, "has 31 characters"),
        (b"x" * 1025, "more than 1024"),
        (b"\x00\xff" * 32, "plain text"),
        (b"x" * 32 + b"\n" + b"y" * 32, "one line"),
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(text: bytes, words: str) -> None:
    with pytest.raises(BadKey, match=words) as refusal:
        parse(text)

    assert "xx" not in str(refusal.value)


def test_a_key_does_not_show_itself() -> None:
    assert repr(KEY) == "JobKey()"


def test_only_the_owner_of_a_public_key_with_the_job_key_has_its_incarnation() -> None:
    name = KEY.routing_id(ALICE)

    assert KEY.incarnation(name, ALICE) == incarnation_of(ALICE).encode()
    assert KEY.incarnation(name, BOB) == b""
    assert JobKey(b"other").incarnation(name, ALICE) == b""
    assert KEY.incarnation(name[:-1], ALICE) == b""


def _hear(control: Admission, public: bytes, size: int = 10, now: float = 0.0) -> bytes | Refused:
    return control.hear(KEY.routing_id(public), public.hex(), size, now)


def test_a_peer_is_heard_under_its_incarnation_and_reached_under_its_name() -> None:
    control = Admission(KEY)

    assert _hear(control, ALICE) == incarnation_of(ALICE).encode()
    assert control.routing_id(incarnation_of(ALICE).encode()) == KEY.routing_id(ALICE)


def test_a_name_that_the_key_of_the_connection_does_not_prove_is_refused() -> None:
    control = Admission(KEY)
    _hear(control, ALICE)

    for name in (KEY.routing_id(ALICE), b"anything", b"", JobKey(b"guess").routing_id(BOB)):
        assert isinstance(control.hear(name, BOB.hex(), 1, 0.0), Refused)
    assert _hear(control, ALICE) == incarnation_of(ALICE).encode()


def test_a_revoked_peer_is_refused_until_it_is_pardoned() -> None:
    control = Admission(KEY)
    name = _hear(control, ALICE)
    assert isinstance(name, bytes)

    control.revoke(name)
    assert not control.admits(ALICE.hex(), 1e9)
    assert isinstance(_hear(control, ALICE), Refused)
    assert control.admits(BOB.hex(), 0.0)

    control.pardon(name)
    assert control.admits(ALICE.hex(), 0.0)


def test_a_flood_is_cut_off_for_a_time_that_doubles_and_others_are_not() -> None:
    control = Admission(KEY)
    now = 0.0
    for span in (1.0, 2.0, 4.0):
        while isinstance(_hear(control, ALICE, now=now), bytes):
            pass
        assert not control.admits(ALICE.hex(), now + span - 0.01)
        assert control.admits(ALICE.hex(), now + span)
        now += span
    assert isinstance(_hear(control, BOB, now=now), bytes)


def test_a_steady_launcher_is_never_cut_off() -> None:
    control = Admission(KEY)
    step = 1.01 / admission.MESSAGES_PER_S

    assert all(isinstance(_hear(control, ALICE, now=n * step), bytes) for n in range(100_000))


def test_large_messages_fill_the_bucket_of_bytes() -> None:
    control = Admission(KEY)
    heard = [_hear(control, ALICE, size=8 << 20) for _ in range(65)]

    assert all(isinstance(name, bytes) for name in heard[:64])
    assert isinstance(heard[64], Refused)


def test_what_strangers_leave_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PEERS", 10)
    control = Admission(None)
    for number in range(100):
        control.hear(b"peer%d" % number, "", 1, 0.0)

    assert len(control._peers) == 10


def test_without_a_key_a_name_is_at_least_a_name() -> None:
    control = Admission(None)

    assert control.hear(b"0123456789abcdef", "", 1, 0.0) == b"0123456789abcdef"
    for name in (b"", b"\x00abc", b"a b", b"\xff", b"x" * 65, "ü".encode()):
        assert isinstance(control.hear(name, "", 1, 0.0), Refused)


def test_refusals_are_told_at_once_then_counted() -> None:
    box = rate_limited_log.RateLimitedLog()
    for _ in range(3):
        box.note("a lie", 0.0)

    assert box.due(0.0) == ["a lie (3 times)"]
    for _ in range(1000):
        box.note("a lie", 1.0)
    assert box.due(59.0) == []
    assert box.due(60.0) == ["a lie (1000 times)"]


def test_refusals_of_many_kinds_become_one() -> None:
    box = rate_limited_log.RateLimitedLog()
    for number in range(10_000):
        box.note(f"lie {number}", 0.0)

    assert len(box.due(0.0)) == rate_limited_log.KINDS + 1
    assert box.total == 10_000
