"""Histories of snapshots: what was safe can be had again, whole, and the same at all ranks."""

from functools import partial

import pytest

from tests.sim.mutants import Mutant, planted
from tests.sim.snapshots.mutants import BUGS, OF_REPLICAS, OF_RETURNS
from tests.sim.snapshots.stories import STORIES, Story
from tests.sim.snapshots.world import World, simulate
from tests.sim.sweep import swept

SEEDS = (*range(10), 16, 19, 34, 36, 47, 49, 57, 4222, 8711)
OF_REPLICAS_SEEDS = range(12)
RETURNING_SEEDS = (*range(8), 547, 970, 1122, 1295, 1624)
RARE = ("stuck", "deaf", "coordinator", "node", "stall", "all", "went back", "from line 1")


def test_histories_are_clean() -> None:
    coverage = swept("python -m tests.sim.snapshots --seed ", simulate, SEEDS)

    assert not [path for path in RARE if not coverage[path]]


def test_histories_of_replicas_are_clean() -> None:
    replay = "python -m tests.sim.snapshots --replicated --seed "
    coverage = swept(replay, partial(simulate, replicated=True), OF_REPLICAS_SEEDS)

    assert not [path for path in ("survived", "none left", "went back") if not coverage[path]]


def test_histories_with_returns_are_clean() -> None:
    replay = "python -m tests.sim.snapshots --returning --seed "
    coverage = swept(replay, partial(simulate, returning=True), RETURNING_SEEDS)

    assert not [path for path in ("came back", "on another node") if not coverage[path]]


@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        *(pytest.param(bug, "replicated", id=bug.name) for bug in OF_REPLICAS),
        *(pytest.param(bug, "returning", id=bug.name) for bug in OF_RETURNS),
    ],
)
def test_a_planted_bug_is_caught_where_there_are_replicas(bug: Mutant, kind: str) -> None:
    with planted(bug):
        violation = simulate(bug.seed, **{kind: True}).violation

    assert violation is not None
    assert violation.checker == bug.checker
    assert simulate(bug.seed, **{kind: True}).violation is None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Mutant) -> None:
    with planted(bug):
        violation = simulate(bug.seed).violation

    assert violation is not None
    assert violation.checker == bug.checker


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_history_that_catches_a_bug_is_clean_without_it(bug: Mutant) -> None:
    assert simulate(bug.seed).violation is None


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.bug.name)
def test_a_story_catches_a_planted_bug(story: Story) -> None:
    with planted(story.bug):
        violation = World(story.plan).run().violation

    assert violation is not None
    assert violation.checker == story.bug.checker
    assert World(story.plan).run().violation is None
