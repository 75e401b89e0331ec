"""A launcher without a place asks elsewhere once nobody answers where it waits."""

from recoverrun.launcher.leadership.coordinator_search import SOUGHT_MOST, CoordinatorSearch
from rendezvous.protocol.heartbeat import HeartbeatTimes

BEAT = HeartbeatTimes(beat_s=1.0, silent_s=6.0)
ENDPOINT, ELSEWHERE = ("endpoint", 1), ("elsewhere", 2)


def silent(search: CoordinatorSearch, now: float) -> float:
    """The time at which the launcher that was heard at `now` is silent."""
    search.heard(now)
    while not search.tick(now):
        now += BEAT.beat_s  # a longer gap would be a standstill of its own
    return now


def test_who_was_sent_to_a_launcher_that_is_silent_asks_again_where_it_was_sent_from() -> None:
    search = CoordinatorSearch(BEAT)
    search.fall_back(ENDPOINT)

    now = 0.0
    for _ in range(SOUGHT_MOST):
        now = silent(search, now)
        assert search.next_place(now) == ENDPOINT

    assert search.next_place(silent(search, now)) is None


def test_who_is_told_of_other_launchers_asks_these() -> None:
    search = CoordinatorSearch(BEAT)
    search.fall_back(ENDPOINT)
    search.learn([ELSEWHERE])
    search.fall_back(ENDPOINT)

    assert [search.next_place(0.0) for _ in range(2)] == [ELSEWHERE, ELSEWHERE]
