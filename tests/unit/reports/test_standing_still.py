"""The ranks that are waited for just now."""

from pathlib import Path

import pytest

from recoverrun.reports.status import Status
from recoverrun.reports.status_lines import plain_lines
from rendezvous.journal.reader import read_run
from tests.unit import journals
from tests.unit.journals import Story
from tests.unit.run_status import status_of


def _status(story: Story) -> Status:
    return status_of(read_run(story.run_dir), journals.WALL + story.now)


def _suspect(story: Story) -> None:
    story.write("hang.suspect", "rank 3 ...", hang=1, rank=3, step=3, phase="first_data",
                lag_s=5.25, waiting=[0, 1])  # fmt: skip


def _told(story: Story) -> list[str]:
    return [replica.waited_for for replica in _status(story).replicas]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return journals.two_steps(tmp_path)


def test_a_suspect_is_told_until_it_goes_on(story: Story) -> None:
    _suspect(story)
    words = "rank 3 keeps others waiting, 5.2 s so far (first data)"
    assert _told(story) == ["", words, ""]
    assert f"replica 1: gpu-01, 2/2 shards up, pids 4102, 4103, quota 4, {words}" in plain_lines(
        _status(story)
    )

    story.write("hang.clear", "rank 3 goes on", hang=1, rank=3, lag_s=6.0)
    assert _told(story) == ["", "", ""]


def test_a_straggler_is_told_until_it_is_as_fast_as_others(story: Story) -> None:
    story.write("straggler.find", "", step=3, rank=4, score=0.1, lag_ms=43.0, kind="data")
    assert _told(story) == ["", "", "rank 4 slows each step by 43 ms: fetching data"]

    story.write("straggler.clear", "", step=9, rank=4)
    assert _told(story) == ["", "", ""]


def test_after_a_takeover_who_is_slow_is_named_again(story: Story) -> None:
    story.write("straggler.find", "", step=3, rank=4, score=0.1, lag_ms=43.0, kind="data")
    story.write("leader.succeed", "", tenure=2)

    assert _told(story) == ["", "", ""]


def test_a_lost_rank_is_waited_for_no_more(story: Story) -> None:
    _suspect(story)
    story.exit(3, signal=9)
    story.lose(1, 3, "rank 3 hangs")

    assert _told(story) == ["", "", ""]
