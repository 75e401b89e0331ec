"""Stragglers in a postmortem: who, from when to when, by how much and why."""

from pathlib import Path

import pytest

from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.slow_ranks import SlowRank, slow_ranks
from rendezvous.journal.reader import read_run
from tests.unit import journals
from tests.unit.journals import Story


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return journals.two_steps(tmp_path)


def _found(story: Story) -> tuple[SlowRank, ...]:
    return slow_ranks(read_run(story.run_dir).entries)


def _slow(story: Story, rank: int, step: int, kind: str = "cpu") -> None:
    story.write("straggler.find", "", step=step, rank=rank, score=0.1, lag_ms=43.0, kind=kind)


def test_a_rank_is_slow_from_where_it_is_named_to_where_it_is_cleared(story: Story) -> None:
    _slow(story, 4, 31)
    story.write("straggler.clear", "", step=90, rank=4)
    _slow(story, 2, 95, "throttled")

    first, second = _found(story)
    why = "waiting for a CPU that others have"
    assert first.words == f"rank 4 slowed each step by 43 ms from step 31 until step 90: {why}"
    why = "held back by the CPU limit of its cgroup"
    assert second.words == f"rank 2 slowed each step by 43 ms from step 95 on: {why}"


def test_a_rank_that_is_named_again_after_a_takeover_is_one(story: Story) -> None:
    _slow(story, 4, 31)
    _slow(story, 4, 70)

    assert [one.from_step for one in _found(story)] == [31]


def test_a_rank_that_was_lost_is_named_anew(story: Story) -> None:
    _slow(story, 4, 31)
    story.exit(4, signal=9)
    story.lose(2, 4, "rank 4 is dead")
    _slow(story, 4, 70)

    assert [(one.from_step, one.until_step) for one in _found(story)] == [(31, -1), (70, -1)]


def test_a_postmortem_tells_of_it(story: Story) -> None:
    _slow(story, 4, 31)

    found = postmortem(read_run(story.run_dir))

    assert to_json(found)["stragglers"] == [
        {"rank": 4, "from_step": 31, "until_step": -1, "lag_ms": 43.0, "kind": "cpu"}
    ]
