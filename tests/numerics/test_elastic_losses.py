"""Survivors agree at whatever moment a member of a group dies, over real gloo."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_loader

from tests.numerics import elastic_scripts as scripts
from tests.numerics import worlds
from tests.numerics.test_elastic import SIZE

SEEDS = range(30)
MORE_SEEDS = range(30, 400)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The members need the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --------------------------------------------------------------------------- the moment of death


@pytest.mark.parametrize("moment", range(10))
def test_a_result_belongs_to_those_among_whom_it_was_made(moment: int) -> None:
    outcome = worlds.run(scripts.dies_at, 2, moment, size=3)

    # Once the data have passed, the sum is that of three, whatever becomes of the vote.
    of_two, of_three = [4.5, 4.5], [6.0, 6.0]
    possible = [of_two] if moment < 4 else [of_three] if moment > 4 else [of_two, of_three]
    assert outcome.results[0] == outcome.results[1]
    assert outcome.results[0][0] in possible
    assert outcome.results[0][1:] == ([1.0, 2.0, 1.0], 2)


@pytest.mark.parametrize("moment", range(4, 14))
def test_objects_come_from_the_members_that_their_sizes_come_from(moment: int) -> None:
    outcome = worlds.run(scripts.objects, 2, moment, size=3)

    assert outcome.results[0][0] == outcome.results[1][0]
    for everybody in (outcome.results[0][0], outcome.results[0][1]):
        assert everybody in ([0, 1, 2], [0, 1, 0])


@pytest.mark.parametrize("moment", range(2, 7))
def test_a_root_that_dies_is_heard_by_all_or_by_none(moment: int) -> None:
    results = worlds.run(scripts.root_dies, moment, size=3).results

    assert results[0] == results[1]
    assert results[0] == "[7.0, 7.0, 7.0]" or "rank 2 is lost" in results[0]


@pytest.mark.parametrize("moment", [2, 4, 7], ids=["before it", "within it", "after it"])
@pytest.mark.parametrize(
    ("way", "heard"),
    [
        ("same", "[0.0, 1.0, 2.0]"),  # all have always held what the root said
        ("done", "[0.0, 1.0, 2.0]"),  # one does what the root does
        ("constant", "[0.0, 0.0, 0.0]"),  # a flag that only the root would raise
        ("own", "[20.0, 20.0, 20.0]"),
    ],
)
def test_survivors_say_what_they_know_the_root_would(way: str, heard: str, moment: int) -> None:
    results = worlds.run(scripts.sites, way, moment, size=3).results

    by_itself, stand_in = f"{heard} None", f"{heard} 0"
    nobody = "dist.broadcast: rank 2 is lost, and nobody can speak for it"
    without_it = stand_in if way in ("same", "done") else nobody
    possible = {2: {without_it}, 4: {without_it, by_itself}, 7: {by_itself}}[moment]
    assert results[0] == results[1] and results[0] in possible


@pytest.mark.parametrize("victim", [0, 2], ids=["who gathers the plans", "another"])
@pytest.mark.parametrize("moment", [1, 30, 48, 84])
def test_a_checkpoint_has_no_part_of_a_lost_rank(victim: int, moment: int, tmp_path: Path) -> None:
    outcome = worlds.run(scripts.checkpoint, victim, moment, str(tmp_path), size=3)

    found = {str(number): torch.zeros(8) for number in range(12)}
    state_dict_loader.load(found, checkpoint_id=tmp_path, no_dist=True)
    assert all(torch.equal(one, torch.arange(8) + int(name)) for name, one in found.items())
    assert len(set(outcome.results.values())) == 1


@pytest.mark.parametrize("first", [True, False], ids=["before the loss", "after it"])
def test_nobody_waits_for_a_rank_whose_script_ended(first: bool) -> None:
    outcome = worlds.run(scripts.leaves_early, first, size=SIZE)

    assert outcome.lost == [3] and outcome.left == [0]
    assert outcome.results[1] == outcome.results[2] >= 2


def test_a_rank_that_is_protected_after_the_loss_meets_the_others() -> None:
    assert worlds.run(scripts.late_protection, size=SIZE).results == dict.fromkeys(range(3), 4.0)


def test_a_builder_that_waits_for_the_dead_is_left_behind() -> None:
    results = worlds.run(scripts.dies_while_meeting, size=SIZE).results

    assert results == dict.fromkeys(range(2), (6.0, 3))


def test_without_a_death_the_same_members_meet_again() -> None:
    outcome = worlds.run(scripts.broken_without_a_death, size=3)

    assert outcome.results == dict.fromkeys(range(3), 6.0)
    assert outcome.hints == ["Connection closed by peer"]


def test_what_fails_again_and_again_is_the_scripts_error() -> None:
    outcome = worlds.run(scripts.failing_for_ever, size=2)

    assert outcome.results == {0: "done", 1: "collective failed: Connection closed by peer"}


# --------------------------------------------------------------------------- any moment


def _expected(name: str, number: int, rank: int, members: Sequence[int], count: int) -> Any:
    """By definition, and not as the code does it."""
    offers = {one: scripts.offering(one, number, count) for one in range(SIZE)}
    total = torch.stack([offers[one] for one in members]).sum(0)
    speaker = [one if one in members else members[one % len(members)] for one in range(SIZE)]
    match name:
        case "sum" | "scatter_sum":
            result = total * (SIZE / len(members))
        case "avg":
            result = total / len(members)
        case "integers":
            result = total
        case "max":
            result = torch.stack([offers[one] for one in members]).amax(0)
        case "gather" | "into":
            result = torch.cat([offers[one] for one in speaker])
        case "broadcast":
            result = offers[speaker[number % SIZE]]
        case "exchange":
            parts = [offers[one] * (1 if one in members else 0) for one in range(SIZE)]
            result = torch.cat(parts)
        case "objects":
            return [(one, "x" * (one + 1)) for one in speaker]
        case _:
            result = offers[rank]
    return scripts._brief(result)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, list) or isinstance(other, list):
        return bool(one == other)
    flat = [*one[0], *one[1], one[2]], [*other[0], *other[1], other[2]]
    return all(abs(a - b) <= 1e-12 * max(1.0, abs(b)) for a, b in zip(*flat, strict=True))


def _check(seed: int) -> None:
    """Two laws: survivors agree, and each result is that of the members of some generation, which
    never goes back.
    """
    chosen = random.Random(seed)
    names = [chosen.choice(scripts.OPERATIONS) for _ in range(10)]
    count = chosen.choice((3, 3, 1 << 16))
    drawn = random.Random(1000 + seed)
    ranks = drawn.sample(range(SIZE), drawn.choice((1, 1, 2)))
    victims = {
        rank: drawn.randrange(60) if drawn.random() < 0.7 else -drawn.randrange(1, 60_000)
        for rank in ranks
    }
    outcome = worlds.run(scripts.stress, seed, victims, size=SIZE)

    generation = 0
    for number, name in enumerate(names):
        got = {rank: results[number] for rank, results in outcome.results.items()}
        while not all(
            _close(result, _expected(name, number, rank, outcome.members[generation], count))
            for rank, result in got.items()
        ):
            generation += 1
            assert generation < len(outcome.members), (
                f"seed {seed}, operation {number} ({name}), {victims}: {got}"
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_survivors_agree_whenever_somebody_dies(seed: int) -> None:
    _check(seed)


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_survivors_agree_over_many_seeds() -> None:
    for seed in MORE_SEEDS:
        _check(seed)
