"""Who may speak for a lost rank's random stream."""

import random

import pytest
import torch

from recoverrun.hooks import ownrng, rng
from recoverrun.hooks.context import Context
from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.heritage import Heritage
from recoverrun.hooks.origins import Origin
from recoverrun.hooks.runtime import Microbatch, Turn
from tests.unit.test_backwards import loop

LOOP = loop("steps")


def _streams(seed: int, draws: int) -> rng.Streams:
    torch.manual_seed(seed)
    if draws:
        torch.empty(draws, dtype=torch.int32).random_()
    return rng.read()


def _top(step: int, streams: rng.Streams) -> Context:
    return Context(step=step, attempt=0, kind="top", loop="train.py:1", streams=streams)


def _ahead(step: int, streams: rng.Streams) -> Context:
    return Context(step=step, attempt=0, kind="ahead", loop="train.py:1", streams=streams)


def _heir(theirs: int, mine: int) -> Heritage:
    """Rank 1 had drawn `theirs` numbers at the top of step 3, we had drawn `mine`."""
    before = max(0, theirs - 9), max(0, mine - 9)
    earlier = _top(2, _streams(8, before[0])), _top(2, _streams(7, before[1]))
    return Heritage(
        rank=1,
        theirs=_top(3, _streams(8, theirs)),
        mine=_top(3, _streams(7, mine)),
        earlier=earlier,
    )


def _microbatch(streams: rng.Streams, *, seeded: bool = False) -> Microbatch:
    turn = Turn(LOOP, frame_id=0, streams=streams)
    return Microbatch(
        index=0, turn=turn, iteration=0, item=None, streams=streams, names={}, attributes={},
        generators={}, bulk={}, iterators={}, draws=[], met=None, ahead=[], positions=[], heard=0,
        seeded=seeded,
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 7, 1 << 40])
@pytest.mark.parametrize("draws", [0, 1, 623, 624, 625, 100_000])
def test_draws_are_counted_from_the_seed(seed: int, draws: int) -> None:
    assert rng.draws_since_seed(_streams(seed, draws)) == draws


@pytest.mark.parametrize(
    ("theirs", "mine", "kin"),
    [
        (700, 700, "alike"),
        (700, 900, "fewer"),
        (900, 700, "other"),
        (0, 2 * rng.MAX_DRAWS, "other"),
    ],
)
def test_kin_is_told_by_how_often_both_drew(theirs: int, mine: int, kin: str) -> None:
    assert _heir(theirs, mine).kin == kin


@pytest.mark.parametrize(
    ("theirs", "mine", "between", "sure"),
    [
        (700, 700, 0, True),
        (700, 700, 50, True),  # we evaluated alike so far
        (700, 900, 0, True),
        (700, 900, 50, False),  # we do what it has not always done
        (900, 700, 0, False),  # it may have done what we never do
    ],
)
def test_what_is_sure_after_a_step(theirs: int, mine: int, between: int, sure: bool) -> None:
    heir = _heir(theirs, mine)

    heir.follow(_ahead(4, _streams(7, mine + 5)), _top(4, _streams(7, mine + 5 + between)))

    assert heir.sure is sure


@pytest.mark.parametrize("earlier", [None, (_top(2, _streams(8, 600)), _top(2, _streams(7, 850)))])
def test_who_drew_more_within_a_step_does_not_know(
    earlier: tuple[Context, Context] | None,
) -> None:
    heir = _heir(700, 900)
    heir.earlier = earlier

    heir.follow(_ahead(4, _streams(7, 905)), _top(4, _streams(7, 905)))

    assert not heir.sure


def test_who_is_not_sure_may_act_only_where_nothing_is_drawn() -> None:
    heir = _heir(900, 700)
    heir.follow(_ahead(4, _streams(7, 705)), _top(4, _streams(7, 705)))

    assert not heir.needs_seed(_microbatch(_streams(7, 705)), _streams(7, 705))
    with pytest.raises(NotReplayable, match="draw random numbers differently"):
        heir.needs_seed(_microbatch(_streams(7, 705)), _streams(7, 706))


def test_who_seeds_before_it_draws_need_not_know_the_stream() -> None:
    heir = _heir(700, 700)
    top = _streams(40, 6)  # seeded anew by the step before
    heir.follow(_ahead(4, top), _top(4, top))

    assert not heir.sure
    assert heir.needs_seed(_microbatch(top, seeded=True), _streams(41, 9))
    with pytest.raises(NotReplayable, match="seeded anew in a step"):
        heir.needs_seed(_microbatch(top), _streams(41, 9))


def test_iterators_made_after_seeding_anew_do_not_know_their_streams() -> None:
    heir = _heir(700, 700)
    made = Origin(streams=_streams(40, 6))

    assert heir.created(made).streams is None
    assert heir.created(Origin(streams=_streams(7, 706))).streams == _streams(8, 706)


def test_the_word_of_another_survivor_is_taken() -> None:
    heir = _heir(700, 900)
    heir.follow(_ahead(4, _streams(7, 905)), _top(4, _streams(7, 955)))
    word = _streams(8, 705)

    heir.told(word)

    assert heir.sure
    assert heir.streams_at(_streams(7, 957)).torch_cpu == _streams(8, 707).torch_cpu


def test_a_gap_that_the_lost_rank_did_not_live_to_pass_counts_too() -> None:
    """It died after its commit; we have gone through the gap since."""
    mine, theirs = _ahead(4, _streams(7, 905)), _ahead(4, _streams(8, 705))
    heir = Heritage(rank=1, theirs=theirs, mine=mine)

    heir.settle([mine, _top(4, _streams(7, 955))], 4, lambda key, value: True, lambda key: False)

    assert not heir.sure


@pytest.mark.parametrize("drawn", [False, True])
def test_a_generator_that_draws_after_the_backward_is_not_followed(drawn: bool) -> None:
    generator = random.Random(5)
    heir = _heir(700, 700)
    heir.moving = {"chance": ownrng.state_of(generator)}
    own = _microbatch(_streams(7, 700))
    own.left = {"chance": (generator, ownrng.state_of(generator))}
    if drawn:
        generator.random()

    if drawn:
        with pytest.raises(NotReplayable, match="chance gives random numbers after a backward"):
            heir.require_hosts(own, rng.read(), ())
    else:
        heir.require_hosts(own, rng.read(), ())
