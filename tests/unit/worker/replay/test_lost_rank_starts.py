"""The start of a lost rank's microbatch: what of it has to be known, and what is compared."""

import random
from typing import Any

import pytest
import torch

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.known_state import (
    NUMBERS_MOVE,
    KnownState,
    StreamMoves,
    digest_of,
    lacking,
    require,
)
from recoverrun.worker.replay.lost_rank import LostRank, host
from tests.unit.contexts import at, draw, stream

pytestmark = pytest.mark.usefixtures("streams_put_back")

MADE_AT = "train.py:3#0"


def anything(key: Any, value: Any) -> bool:
    return True


def nothing(key: Any, value: Any) -> bool:
    return False


# --------------------------------------------------------------------------- what is needed


NO_DRAWS = StreamMoves(torch=False, seeded=False, hosts=(), generators=())


def test_what_is_not_known_is_needed_only_if_it_bears_on_the_gradient() -> None:
    here = at(4, names={"seen": 1})
    state = KnownState(here, unknown=frozenset({"seen", "gone"}))

    require(state, here, NO_DRAWS, nothing)
    with pytest.raises(NotReplayable, match="^seen differs between ranks and moves between steps"):
        require(state, here, NO_DRAWS, anything)


@pytest.mark.parametrize("drawn", [False, True])
def test_the_stream_of_python_is_needed_only_by_who_draws_from_it(drawn: bool) -> None:
    here = at(4)
    state = KnownState(here, unknown=frozenset({host("python")}))
    moved = StreamMoves(torch=False, seeded=False, hosts=(host("python"),) * drawn, generators=())

    if drawn:
        with pytest.raises(NotReplayable, match=NUMBERS_MOVE):
            require(state, here, moved, anything)
    else:
        require(state, here, moved, anything)


@pytest.mark.parametrize(
    ("torch_moves", "seeded", "refused"),
    [(False, False, False), (True, True, False), (True, False, True)],
)
def test_torch_s_stream_is_needed_by_who_draws_before_it_seeds(
    torch_moves: bool, seeded: bool, refused: bool
) -> None:
    state = KnownState(at(4), torch_unknown="it was seeded anew")
    moved = StreamMoves(torch=torch_moves, seeded=seeded, hosts=(), generators=())

    if refused:
        with pytest.raises(NotReplayable, match="it was seeded anew"):
            require(state, at(4), moved, anything)
    else:
        require(state, at(4), moved, anything)


def test_a_generator_that_it_never_made_cannot_be_drawn_from_in_its_place() -> None:
    moved = StreamMoves(torch=False, seeded=False, hosts=(), generators=(MADE_AT,))
    ours = at(4, generators={MADE_AT: b"ours"})

    with pytest.raises(NotReplayable, match=MADE_AT):
        require(KnownState(at(4)), ours, moved, anything)
    require(KnownState(at(4, generators={MADE_AT: b"state"})), ours, moved, anything)


def test_a_generator_that_the_microbatch_itself_makes_is_not_needed() -> None:
    moved = StreamMoves(torch=False, seeded=False, hosts=(), generators=(MADE_AT,))

    require(KnownState(at(4)), at(4), moved, anything)


def test_what_a_microbatch_drew_from() -> None:
    torch.manual_seed(1)
    random.seed(1)
    generators = [{MADE_AT: b"one", "other": b"x"}, {MADE_AT: b"two", "other": b"x", "new": b"y"}]
    top = at(4, generators=generators[0])
    rested = StreamMoves.between(top, at(4, 0, "after", generators=generators[0]), False)
    assert rested == StreamMoves(torch=False, seeded=False, hosts=(), generators=())

    draw(1)
    random.random()
    after = at(4, 0, "after", generators=generators[1])

    moved = StreamMoves.between(top, after, seeded=True)
    assert (moved.torch, moved.seeded) == (True, True)
    assert (moved.hosts, moved.generators) == ((host("python"),), (MADE_AT, "new"))


def test_what_a_microbatch_makes_of_unknown_values_is_not_known_either() -> None:
    keys = frozenset({"rests", "set", "gone", host("python")})
    names = {"rests": 1, "set": 2, "gone": 3}
    start = KnownState(at(4, names=names, streams=stream(7, 5)), keys, torch_unknown="seeded anew")

    after = at(4, 0, "after", names={"rests": 1, "set": 9}, streams=stream(7, 5))

    assert lacking(start, after) == (keys, "seeded anew")


def test_where_a_microbatch_has_seeded_torch_s_stream_it_is_known_at_its_end() -> None:
    start = KnownState(at(4, streams=stream(7, 5)), torch_unknown="seeded anew")

    after = at(4, 0, "after", streams=stream(3, 1))

    assert lacking(start, after) == (frozenset(), "")


def test_what_its_executor_does_not_know_is_not_known_to_others() -> None:
    own = [at(3, 0, "after", names={"x": 0}), at(4, names={"x": 0})]
    lost = LostRank(1, apart=False)
    lost.learn(at(3, 0, "after", names={"x": 7}), own[0], lacking=(frozenset({"x"}), "why"))

    state = lost.at(own[1].point, own)

    assert (state.unknown, state.torch_unknown) == ({"x"}, "why")


# --------------------------------------------------------------------------- digests of starts


def _start(seed: int = 1, generator: bytes = b"g", **names: Any) -> Context:
    torch.manual_seed(seed)
    return at(4, names={"rank": 1, "x": 2, **names}, generators={MADE_AT: generator})


def test_a_digest_covers_every_stream_and_what_bears() -> None:
    """A stream also if the microbatch draws nothing: the next one begins where it stands."""
    digest = digest_of(_start(), anything)

    assert digest_of(_start(), anything) == digest
    assert digest_of(_start(seed=2), anything) != digest
    assert digest_of(_start(generator=b"h"), anything) != digest
    assert digest_of(_start(x=3), anything) != digest
    assert digest_of(_start(x=torch.tensor(2)), anything) != digest


def test_a_digest_leaves_out_what_cannot_matter() -> None:
    digest = digest_of(_start(), nothing)

    assert digest_of(_start(x=3), nothing) == digest
    one, other = _start(local_rank=0), _start(local_rank=1)
    assert digest_of(one, anything) == digest_of(other, anything)


def test_a_digest_does_not_depend_on_the_order_of_variables() -> None:
    one, other = at(4, names={"a": 1, "b": 2}), at(4, names={"b": 2, "a": 1})

    assert digest_of(one, anything) == digest_of(other, anything)
