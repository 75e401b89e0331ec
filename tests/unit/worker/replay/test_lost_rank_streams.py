"""Random streams of a lost rank: moved on as far as ours, or unknown."""

import random
import struct
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from recoverrun.worker.context.slot_context import STREAM, Context
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.known_state import UNTOLD, StreamMoves, generator_key, merged, require
from recoverrun.worker.replay.lost_rank import LostRank, host
from recoverrun.worker.rng import object_generators
from recoverrun.worker.rng.streams import Streams, read_streams
from tests.unit.contexts import at, stream
from tests.unit.worker.replay.test_lost_rank import lost_at

pytestmark = pytest.mark.usefixtures("streams_put_back")

MADE_AT = "train.py:3#0"
NUMPY_AT = "train.py:4#0"


def anything(key: Any, value: Any) -> bool:
    return True


# --------------------------------------------------------------------------- torch's stream


@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 1000])
def test_its_stream_moves_by_as_many_numbers_as_ours(drawn: int) -> None:
    own = [at(3, 0, "after", streams=stream(7, 100)), at(4, streams=stream(7, 100 + drawn))]
    lost = lost_at(at(3, 0, "after", streams=stream(8, 40)), own[0])

    state = lost.at(own[1].point, own)

    assert state.context.streams == stream(8, 40 + drawn)
    assert not state.torch_unknown


def test_a_stream_that_was_seeded_between_steps_is_not_known() -> None:
    own = [at(3, 0, "after", streams=stream(7, 100)), at(4, streams=stream(40, 6))]
    lost = lost_at(at(3, 0, "after", streams=stream(8, 100)), own[0])

    state = lost.at(own[1].point, own)

    assert state.torch_unknown == UNTOLD
    assert lost.known_at(own[1].streams, own[1]) is None
    assert lost.origin(0, Origin(streams=stream(40, 9)), own) is not None
    made = lost.origin(0, Origin(streams=stream(40, 9)), own)
    assert made is not None and made.streams is None


def test_iterators_that_it_would_have_made_since_are_told() -> None:
    own = [at(3, 0, "after", streams=stream(7, 100)), at(4, streams=stream(7, 120))]
    lost = lost_at(at(3, 0, "after", streams=stream(8, 100)), own[0])
    lost.at(own[1].point, own)

    made = lost.origin(0, Origin(streams=stream(7, 130)), own)

    assert made is not None and made.streams == stream(8, 130)


def test_iterators_that_it_made_are_where_it_says() -> None:
    theirs, mine = Origin(streams=stream(8, 3)), Origin(streams=stream(7, 5))
    own = [at(3, 0, "after", loaders={0: mine}), at(4, loaders={0: mine})]
    lost = lost_at(at(3, 0, "after", loaders={0: theirs}), own[0])

    assert lost.at(own[1].point, own).context.loaders == {0: theirs}
    assert lost.origin(0, mine, own) == theirs
    assert LostRank(1, apart=False).origin(0, mine, own) is None


# --------------------------------------------------------------------------- other streams


def hosts_at(seed: int, drawn: int) -> Streams:
    random.seed(seed)
    for _ in range(drawn):
        random.random()
    return read_streams()


@pytest.mark.parametrize(
    ("theirs", "ours", "known"),
    [
        ((5, 2), [(6, 3), (6, 3)], (5, 2)),  # nobody draws there
        ((6, 3), [(6, 3), (6, 4)], (6, 4)),  # seeded alike: it draws as we do
        ((5, 2), [(6, 3), (6, 4)], None),  # how many numbers it takes only its code knows
    ],
)
def test_numbers_of_python_between_steps(
    theirs: tuple[int, int], ours: list[tuple[int, int]], known: tuple[int, int] | None
) -> None:
    torch.manual_seed(7)
    own = [at(3, 0, "after", streams=hosts_at(*ours[0])), at(4, streams=hosts_at(*ours[1]))]
    lost = lost_at(at(3, 0, "after", streams=hosts_at(*theirs)), own[0])

    state = lost.at(own[1].point, own)

    if known is None:
        assert host("python") in state.unknown
    else:
        assert not state.unknown
        assert state.context.streams.python == hosts_at(*known).python


def generator_at(seed: int, drawn: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    torch.empty(drawn, dtype=torch.int32).random_(generator=generator)
    return generator.get_state()


def test_a_generator_of_torch_s_moves_by_as_many_numbers_as_ours() -> None:
    own = [
        at(3, 0, "after", generators={MADE_AT: generator_at(7, 10)}),
        at(4, generators={MADE_AT: generator_at(7, 35)}),
    ]
    lost = lost_at(at(3, 0, "after", generators={MADE_AT: generator_at(8, 10)}), own[0])

    state = lost.at(own[1].point, own)

    assert not state.unknown
    told = state.context.generators[MADE_AT]
    assert isinstance(told, torch.Tensor) and torch.equal(told, generator_at(8, 35))


def test_where_one_stands_that_was_made_here_only_now_is_not_known_of_who_has_another() -> None:
    own = [at(3, 0, "after"), at(4, generators={MADE_AT: generator_at(7, 35)})]
    lost = lost_at(at(3, 0, "after", generators={MADE_AT: generator_at(8, 10)}), own[0])

    state = lost.at(own[1].point, own)

    moved = StreamMoves(torch=False, seeded=False, hosts=(), generators=(MADE_AT,))
    with pytest.raises(NotReplayable, match=f"made at {MADE_AT} stands elsewhere"):
        require(state, own[1], moved, anything)


@pytest.mark.parametrize(
    ("ours", "theirs", "known"),
    [
        ({"train.py:4#0": b"one"}, {"train.py:4#0": b"one"}, True),
        ({"train.py:4#0": b"one"}, {"train.py:4#0": b"two"}, False),
        ({"train.py:4#0": b"one"}, {}, False),  # it has made none
        ({"train.py:9#0": b"one"}, {"train.py:9#0": b"one"}, False),  # made elsewhere
        ({}, {}, False),
    ],
)
def test_a_new_generator_is_common_to_all_if_the_last_one_made_there_was(
    ours: dict[str, bytes], theirs: dict[str, bytes], known: bool
) -> None:
    own = [at(3, 0, "after", generators=ours), at(4, generators={"train.py:4#1": b"new"})]
    lost = lost_at(at(3, 0, "after", generators=theirs), own[0])

    state = lost.at(own[1].point, own)

    assert (generator_key("train.py:4#1") not in state.unknown) is known


@pytest.mark.parametrize("make", [random.Random, numpy.random.default_rng])
def test_where_another_kind_of_generator_stands_is_not_known_once_it_moved(
    make: Callable[[int], Any],
) -> None:
    mine, theirs = make(7), make(8)
    began, there = object_generators.state_of(mine), object_generators.state_of(theirs)
    mine.random()
    own = [
        at(3, 0, "after", generators={MADE_AT: began}),
        at(4, generators={MADE_AT: object_generators.state_of(mine)}),
    ]
    lost = lost_at(at(3, 0, "after", generators={MADE_AT: there}), own[0])

    state = lost.at(own[1].point, own)

    moved = StreamMoves(torch=False, seeded=False, hosts=(), generators=(MADE_AT,))
    with pytest.raises(NotReplayable, match=f"made at {MADE_AT} stands elsewhere"):
        require(state, own[1], moved, anything)
    require(state, own[1], StreamMoves(False, False, (), ()), anything)  # nobody draws from it


# --------------------------------------------------------------------------- unequal draws


def moved_by(place: str, count: int) -> list[Context]:
    """After a microbatch and as the next one begins, so many numbers of `place` later."""
    made, numbers = torch.Generator().manual_seed(4), numpy.random.default_rng(5)
    streams = stream(5, 0)
    contexts = []
    for kind, step in (("after", 3), ("top", 4)):
        if kind == "top":
            here = {"torch": None, MADE_AT: made}
            if place in here:
                torch.empty(count, dtype=torch.int32).random_(generator=here[place])
            for _ in range(count):
                random.random() if place == "python" else None
                numbers.random() if place == NUMPY_AT else None
            streams = read_streams()
        offset = count if (place, kind) == ("cuda0", "top") else 0
        gpu = struct.pack("<QQ", 7, 4 * offset)
        given = Streams(
            torch_cpu=streams.torch_cpu, torch_cuda=(gpu,),
            python=streams.python, numpy=streams.numpy,
        )  # fmt: skip
        states = {
            MADE_AT: object_generators.state_of(made),
            NUMPY_AT: object_generators.state_of(numbers),
        }
        made_there: Any = at(step, 0, kind, streams=given, generators=states)  # type: ignore
        contexts.append(made_there)
    return contexts


@pytest.mark.parametrize("place", ["torch", "cuda0", MADE_AT, NUMPY_AT, "python"])
@pytest.mark.parametrize(("unequal", "count"), [(True, 3), (True, 0), (False, 3)])
def test_a_stream_that_moves_otherwise_on_other_ranks_is_known_while_it_rests(
    place: str, unequal: bool, count: int
) -> None:
    own = moved_by(place, count)
    counted = place in ("torch", "cuda0", MADE_AT)
    said: frozenset[Any] = frozenset({place if counted else (STREAM, place)} if unequal else ())
    lost = lost_at(own[0], own[0], **{"unequal" if counted else "alone": said})

    state = lost.at(own[1].point, own)

    known = not unequal or not count
    assert (state.torch_unknown == "") == (known or place not in ("torch", "cuda0"))
    assert (not state.unknown) == (known or place in ("torch", "cuda0"))


@pytest.mark.parametrize(
    ("after", "theirs", "known"), [(1, 1, True), (1, 7, False), (2, 7, False), (0, 7, False)]
)
def test_what_has_just_parted_on_a_rank_moves_there(after: int, theirs: int, known: bool) -> None:
    """It did so a step ago, and may again, whether or not it does here."""
    values, apart = merged({"x": 1}, {"x": after}, {"x": theirs}, restless={"x"})

    assert values == {"x": theirs} and apart == (set() if known else {"x"})
