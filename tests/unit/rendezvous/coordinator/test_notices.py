"""The same finding of several ranks is one line of the journal."""

from rendezvous.coordinator.notices import KEPT, Notices
from rendezvous.protocol.messages import UNSAID, Notice


def say(notices: Notices, rank: int, reason: str, event: str = "promise.weaken") -> list[int]:
    """The rank of which the journal's line speaks, if there is a line."""
    record = notices.record(Notice(rank=rank, generation=1, event=event, reason=reason))
    if record is None:
        return []
    assert record.event == "notice.give" and record.fields["event"] == event
    assert record.reason == reason
    return [rank for rank in [record.fields["rank"]] if isinstance(rank, int)]


def test_what_several_ranks_say_is_written_down_as_the_first_ones() -> None:
    notices = Notices()

    assert say(notices, 1, "numbers move") == [1]
    assert say(notices, 0, "numbers move") == say(notices, 2, "numbers move") == []
    assert say(notices, 0, "numbers move", event="promise.steer") == [0]
    assert say(notices, 0, "another thing") == [0]


def test_a_rank_that_says_something_again_says_it() -> None:
    notices = Notices()

    assert say(notices, 1, "no snapshot") == say(notices, 1, "no snapshot") == [1]


def test_an_unknown_reason_counts_until_a_known_one_is_told() -> None:
    notices = Notices()

    assert say(notices, 2, f"equal-count: {UNSAID}") == [2]
    assert say(notices, 1, "equal-count: numbers move") == [1]
    assert say(notices, 0, f"equal-count: {UNSAID}") == []


def test_what_is_remembered_is_bounded() -> None:
    notices = Notices()
    say(notices, 0, "first")
    for index in range(KEPT):
        say(notices, 0, f"step {index}")

    assert say(notices, 1, f"step {KEPT - 1}") == []
    assert say(notices, 1, "first") == [1]
