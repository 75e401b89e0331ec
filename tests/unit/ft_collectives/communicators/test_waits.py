"""A wait for others is seen in the page of progress for as long as it lasts."""

from datetime import timedelta
from pathlib import Path

import pytest

from ft_collectives.communicators.channel import Channel, Communicator
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.communicators.waits import EVERYBODY, Waits
from rendezvous.protocol.progress_page import NO_LIMIT_MS, ProgressWriter, Wait, key_of, read_page
from rendezvous.protocol.views import View

VIEW = View(generation=4, live=(0, 1, 2), live_ranks=(0, 2, 4), losses=())


class Rank:
    """Rank 2, whose script has set a limit."""

    def __init__(self, folder: Path, limit: timedelta = timedelta(seconds=90)) -> None:
        self.page = str(folder / "page")
        self.told: list[str] = []
        limits = TimeLimits(lambda: limit, lambda generation, reason: self.told.append(reason))
        self.channels: list[Channel] = []
        self.waits = Waits(2, limits, lambda: VIEW, ProgressWriter(self.page), self.channels)

    def seen(self) -> Wait | None:
        place = read_page(self.page)
        assert place is not None
        return place.wait


def test_a_wait_is_seen_until_it_is_over(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    channel = Channel("ddp", (0, 2, 4), what="the reduction of gradients")

    with rank.waits.on(channel, 7) as within_s:
        during = rank.seen()

    assert during == Wait(
        key_of("ddp"), 7, 4, 90_000, (0, 2, 3), "the reduction of gradients"
    )  # fmt: skip
    assert within_s == 90.0 and rank.seen() is None


def test_a_wait_that_fails_is_over_too(tmp_path: Path) -> None:
    rank = Rank(tmp_path)

    with pytest.raises(RuntimeError), rank.waits.on(Channel("ddp", (0, 2)), 1):
        raise RuntimeError

    assert rank.seen() is None


def test_without_a_channel_everybody_is_waited_for(tmp_path: Path) -> None:
    rank = Rank(tmp_path)

    with rank.waits.on(None, 0, "other members"):
        wait = rank.seen()

    assert wait == Wait(key_of("other members"), 0, 4, 90_000, EVERYBODY, "other members")


def test_a_channel_has_a_limit_of_its_own(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    channel = Channel("ddp", (0, 2), limit=lambda: timedelta(seconds=5))

    with rank.waits.on(channel, 1) as within_s:
        wait = rank.seen()

    assert within_s == 5.0 and wait is not None and wait.limit_ms == 5000


def test_a_limit_that_is_too_long_to_be_told_is_none(tmp_path: Path) -> None:
    rank = Rank(tmp_path, timedelta(days=365))

    with rank.waits.on(Channel("ddp", (0, 2)), 1):
        wait = rank.seen()

    assert wait is not None and wait.limit_ms == NO_LIMIT_MS


def test_who_waited_too_long_names_the_others(tmp_path: Path) -> None:
    rank = Rank(tmp_path)

    error = rank.waits.overdue(Channel("ddp", (0, 2, 4), what="the vote"))

    assert "the vote" in str(error) and "90" in str(error)
    assert rank.told == [str(error)]


def test_operations_of_a_new_generation_are_counted_anew() -> None:
    channel = Channel("ddp", (0, 2))
    channel.begun = 9

    channel.serve(Communicator(2))

    assert channel.begun == 0


def test_what_it_has_joined_is_of_the_present_generation(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.channels += [Channel("ddp", (0, 2, 4)), Channel("vote", (0, 2, 4))]
    for channel, generation in zip(rank.channels, (4, 3), strict=True):
        channel.serve(Communicator(generation, (0, 2, 4)))
        channel.begun = 8

    assert rank.waits.joined() == ((key_of("ddp"), 8), (key_of("vote"), 0))
