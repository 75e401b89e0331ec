"""States of `random.Random`, which are looked up in memory: always what the generator would say."""

import copy
import gc
import pickle
import random
from collections.abc import Callable

import pytest
import torch

from recoverrun.worker.rng import host_streams, object_generators
from recoverrun.worker.rng.host_streams import pack_python
from recoverrun.worker.rng.object_generators import put_state, state_of
from recoverrun.worker.rng.streams import read_streams


def said(generator: random.Random) -> bytes:
    return pack_python(generator.getstate())


MOVES: dict[str, Callable[[random.Random], object]] = {
    "random": lambda g: g.random(),
    "many": lambda g: [g.random() for _ in range(700)],  # all words anew
    "gauss": lambda g: g.gauss(0, 1),
    "two gauss": lambda g: (g.gauss(0, 1), g.gauss(0, 1)),  # the second was kept for later
    "seed": lambda g: g.seed(99),
    "setstate": lambda g: g.setstate(random.Random(98).getstate()),
    "setstate with a gaussian": lambda g: g.setstate(with_gaussian()),
    "shuffle": lambda g: g.shuffle([1, 2, 3, 4]),
    "put_state": lambda g: put_state(g, said(random.Random(97))),
}


def with_gaussian() -> tuple[object, ...]:
    made = random.Random(96)
    made.gauss(0, 1)
    return made.getstate()


class Own(random.Random):
    """Of the script, with attributes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.words = [1, 2]


class Equal(Own):
    """That is told from others by its words, and goes into no dict."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.words == other.words

    __hash__ = None  # type: ignore[assignment]


KINDS = pytest.mark.parametrize("kind", [random.Random, Own, Equal])


@KINDS
@pytest.mark.parametrize("move", MOVES)
def test_the_state_after_a_move_is_the_new_one(
    move: str, kind: Callable[[int], random.Random]
) -> None:
    generator = kind(5)
    before = state_of(generator)

    MOVES[move](generator)

    assert state_of(generator) == said(generator) != before


@KINDS
def test_without_a_move_the_state_is_the_same(kind: Callable[[int], random.Random]) -> None:
    generator = kind(5)

    states = {state_of(generator) for _ in range(3)}

    assert states == {said(generator)}


@pytest.mark.parametrize("gaussian", [False, True])
def test_two_do_not_share_what_was_remembered(gaussian: bool) -> None:
    """Neither while they stand alike, nor after one of them has moved."""
    one, other = random.Random(5), random.Random(5)
    for generator in (one, other) if gaussian else ():
        generator.gauss(0, 1)
    assert state_of(one) == state_of(other)

    other.random()
    seen = [(state_of(one), state_of(other)) for _ in range(2)]

    assert seen == [(said(one), said(other))] * 2 and said(one) != said(other)


def test_a_copy_is_another_one() -> None:
    one = random.Random(5)
    state_of(one)

    for made in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        made.random()
        assert state_of(made) == said(made) != state_of(one) == said(one)


@pytest.mark.usefixtures("streams_put_back")
def test_the_process_s_own_stream_is_none_of_theirs() -> None:
    generator = random.Random()
    generator.setstate(random.getstate())
    streams = read_streams()
    assert state_of(generator) == streams.python

    random.random()

    assert read_streams().python == pack_python(random.getstate()) != state_of(generator)
    assert state_of(generator) == said(generator) == streams.python


def test_nothing_is_remembered_of_one_that_is_gone() -> None:
    """Another one may lie where it lay."""
    gc.collect()
    before = len(object_generators._memos)
    generators = [random.Random(seed) for seed in range(5)]
    for generator in generators:
        state_of(generator)
    assert len(object_generators._memos) == before + 5

    del generators, generator
    gc.collect()

    assert len(object_generators._memos) == before


def test_no_move_of_any_is_missed() -> None:
    chance = random.Random(11)
    generators = [random.Random(1), random.Random(1), Own(2), random.Random(3)]
    kept = [said(generators[0])]
    moves = [
        *MOVES.values(),
        lambda g: g.seed(chance.random()),
        lambda g: kept.append(said(g)),
        lambda g: put_state(g, chance.choice(kept)),
        lambda g: None,
    ]

    for _ in range(2000):
        chance.choice(moves)(chance.choice(generators))
        looked = chance.choice(generators)  # others move unseen
        assert state_of(looked) == said(looked)


@KINDS
def test_where_memory_looks_otherwise_the_generator_is_asked(
    kind: Callable[[int], random.Random], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_streams, "_RANDOM_AT", None)
    generator = kind(5)

    for move in MOVES.values():
        move(generator)
        assert state_of(generator) == said(generator)


@pytest.mark.parametrize("kind", [Own, Equal])
def test_generators_of_the_script_s_own_kinds_are_asked(
    kind: Callable[[int], random.Random], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows where such an object has its state in memory."""

    def looked_up(generator: random.Random, memo: host_streams.Memo) -> bytes:
        raise AssertionError("not where that of a plain one is")

    generator = kind(5)
    monkeypatch.setattr(host_streams, "python_bytes", looked_up)

    assert state_of(generator) == said(generator)


def test_two_that_are_equal_stand_each_for_itself() -> None:
    one, other = Equal(5), Equal(6)
    assert one == other

    states = [state_of(one), state_of(other)]

    assert states == [said(one), said(other)] and states[0] != states[1]


@pytest.mark.parametrize("move", MOVES)
def test_numbers_that_followed_a_state_follow_again(move: str) -> None:
    generator = random.Random(5)
    MOVES[move](generator)
    state = state_of(generator)
    first = [generator.gauss(0, 1), generator.random(), generator.gauss(0, 1)]

    put_state(generator, state)

    assert state_of(generator) == state
    assert [generator.gauss(0, 1), generator.random(), generator.gauss(0, 1)] == first


def test_torch_s_generators_are_asked_as_before() -> None:
    generator = torch.Generator().manual_seed(5)
    before = state_of(generator)

    torch.rand(1, generator=generator)

    now = state_of(generator)
    assert isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor)
    assert torch.equal(now, generator.get_state()) and not torch.equal(now, before)
