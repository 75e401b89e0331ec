"""The age of an end that a poll has found, which may have lasted longer than it should."""

import pytest

from recoverrun.launcher.node.last_alive import last_alive


@pytest.mark.parametrize(
    ("began", "due", "now", "expected"),
    [
        (10.0, 10.25, 10.1, 10.1),  # it woke the poll
        (10.0, 10.25, 10.0001, 9.0),  # it was there before
        (10.0, 10.25, 10.5, 10.5),  # a busy machine
        (10.0, 10.25, 22.0, 10.0),  # the launcher was stopped
        (10.0, 8.0, 10.4, 10.4),  # nothing was to be waited for
    ],
)
def test_what_a_launcher_that_stood_still_finds_may_be_as_old_as_its_poll(
    began: float, due: float, now: float, expected: float
) -> None:
    assert last_alive(looked_at=9.0, began=began, due=due, now=now) == expected
