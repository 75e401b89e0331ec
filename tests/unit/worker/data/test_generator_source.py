"""Generators of the script, asked as another rank."""

import itertools
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.generator_wrapper import Make
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.source import Draw
from recoverrun.worker.rng.streams import read_streams, restore_streams

OTHER = 2


@dataclass
class Tens:
    """A source whose items of another rank are ten times those of this one."""

    number: int = 0
    count: int = 0
    ended: bool = False
    moved: Any = None

    def serve(self, rank: int, index: int) -> Any:
        return torch.tensor([10 * index])

    def seek(self, rank: int, index: int) -> None: ...

    def forget(self, rank: int) -> None: ...

    def begin_step(self) -> None: ...


@dataclass
class Play:
    """The runtime's side of a feed."""

    own_rank: int = 0
    acting_rank: int | None = None
    fresh: bool = False
    layout: None = None
    looking_back: bool = False
    asking: int = 0
    reads_ahead: bool = False
    draws: list[Draw] = field(default_factory=list)
    spoiled: str = ""
    tens: Tens = field(default_factory=Tens)
    trusted: bool = True
    known: bool = True  # what the generator was given
    makes: Make | None = None  # the call of the rank that is executed

    def trusts(self, name: str) -> bool:
        return self.trusted

    def made_as(self, number: int, name: str, own: Make) -> Make | None:
        return own if self.known else self.makes

    def created_at(self, number: int, rank: int) -> Origin | None:
        return None

    def drawn(self, source: Any, index: int, item: Any) -> None:
        self.draws.append(Draw(source, index, item))

    def speaking_as(self, rank: int) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def drawn_so_far(self) -> int:
        return len(self.draws)

    def draws_since(self, mark: int) -> list[Draw] | None:
        return self.draws[mark:] if len(self.draws) - mark <= 5 else None

    def fold(self, mark: int, draw: Draw | None) -> None:
        self.draws[mark:] = [] if draw is None else [draw]

    def spoil(self, reason: str) -> None:
        self.spoiled = reason

    def loader(self) -> Iterator[torch.Tensor]:
        for index in range(6):
            item = torch.tensor([index])
            self.drawn(self.tens, index, item)
            yield item


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = read_streams()
    yield
    restore_streams(before)


def as_other(play: Play, feed: GeneratorSource, index: int) -> Any:
    play.acting_rank = OTHER
    feed.seek(OTHER, index)
    item = next(feed)
    play.acting_rank = None
    return item


def test_items_are_those_that_the_other_rank_would_have_got() -> None:
    play = Play()
    feed = GeneratorSource((one for one in play.loader()), "endless", play, 0)
    own = [int(next(feed)) for _ in range(3)]

    assert [int(as_other(play, feed, index)) for index in (0, 2, 1)] == [0, 20, 10]
    assert own == [0, 1, 2]
    assert [int(next(feed)) for _ in range(2)] == [3, 4]
    assert play.spoiled == ""


def read_ahead(play: Play) -> Iterator[torch.Tensor]:
    """As accelerate does, to know its last batch."""
    items = play.loader()
    current = next(items)
    for following in items:
        yield current
        current = following
    yield current


@pytest.mark.parametrize("moved", [False, True], ids=["itself", "on another device"])
def test_an_item_may_have_been_drawn_by_an_earlier_call(moved: bool) -> None:
    play = Play()
    items = read_ahead(play)
    feed = GeneratorSource((one.clone() if moved else one for one in items), "cycle", play, 0)
    own = [int(next(feed)) for _ in range(3)]

    assert [int(as_other(play, feed, index)) for index in (0, 2, 1)] == [0, 20, 10]
    own += [int(next(feed)) for _ in range(3)]
    assert own == [0, 1, 2, 3, 4, 5]
    assert int(as_other(play, feed, 5)) == 50, "its own call drew nothing"
    assert play.spoiled == ""


def test_items_that_a_generator_passes_over_are_nobody_s() -> None:
    play = Play()
    feed = GeneratorSource((one.clone() for one in play.loader() if one % 2), "odd", play, 0)
    own = [int(next(feed)) for _ in range(3)]

    assert own == [1, 3, 5]
    assert [int(as_other(play, feed, index)) for index in (0, 1, 2)] == [10, 30, 50]


def test_a_generator_over_a_loader_is_never_resumed_as_another_rank() -> None:
    def halves() -> Iterator[torch.Tensor]:
        for one in play.loader():
            yield one
            yield one + 1

    play = Play()
    feed = GeneratorSource(halves(), "halves", play, 0)
    own = [int(next(feed)) for _ in range(2)]

    as_other(play, feed, 1)
    own += [int(next(feed)) for _ in range(2)]

    assert "makes something else of what" in play.spoiled
    assert own == [0, 1, 1, 2]


def test_parts_of_an_item_are_replaced() -> None:
    play = Play()
    feed = GeneratorSource(({"x": one, "n": 3} for one in play.loader()), "named", play, 0)
    next(feed), next(feed)

    assert as_other(play, feed, 1) == {"x": torch.tensor([10]), "n": 3}


def test_an_item_is_served_for_as_long_as_somebody_keeps_its_draw() -> None:
    """A loop goes over a list of batches: each is a transaction."""
    play = Play()
    feed = GeneratorSource((one for one in play.loader()), "endless", play, 0)
    own = [int(next(feed)) for _ in range(3)]
    held, play.draws = play.draws[:2], []
    for _ in range(2):
        feed.begin_step(3)

    served = [int(as_other(play, feed, one.index)) for one in held]
    held.clear()
    as_other(play, feed, 0)

    assert (own, served) == ([0, 1, 2], [0, 10])
    assert "another rank takes more items from" in play.spoiled


def test_one_feed_over_another_is_one_source() -> None:
    play = Play()
    inner = GeneratorSource((one for one in play.loader()), "inner", play, 0)
    outer = GeneratorSource(((one, 1) for one in inner), "outer", play, 1)
    next(outer), next(outer)

    assert [draw.source for draw in play.draws] == [outer, outer]
    assert as_other(play, outer, 1) == (torch.tensor([10]), 1)


def test_streams_move_as_far_as_they_did_here() -> None:
    def drawing() -> Iterator[torch.Tensor]:
        for one in play.loader():
            torch.rand(3)
            yield one

    play = Play()
    feed = GeneratorSource(drawing(), "drawing", play, 0)
    next(feed)
    torch.manual_seed(5)
    torch.rand(3)
    expected = read_streams()

    torch.manual_seed(5)
    as_other(play, feed, 0)

    assert read_streams() == expected


class Augmented(Tens):
    """Each item is read with random numbers, of another rank with more of them."""

    def read(self, rank: int, index: int) -> Any:
        torch.rand(1 + rank)
        return torch.tensor([index + random.random()])

    def serve(self, rank: int, index: int) -> Any:
        return self.read(rank, index)


def augmented(play: Play, more: int) -> Iterator[torch.Tensor]:
    """`more` numbers are drawn beside the loader."""
    source = play.tens
    assert isinstance(source, Augmented)
    for index in range(6):
        before = read_streams()
        item = source.read(play.own_rank, index)
        source.moved = before, read_streams()
        play.drawn(source, index, item)
        torch.rand(more)
        yield item


@pytest.mark.parametrize("looking_back", [True, False])
def test_what_a_loader_draws_as_it_reads_is_drawn_as_the_other_rank_does(
    looking_back: bool,
) -> None:
    play = Play(tens=Augmented())
    feed = GeneratorSource(augmented(play, 0), "metered", play, 0)
    for _ in range(2):
        next(feed)
    torch.manual_seed(5)
    random.seed(6)
    expected = Augmented().read(OTHER, 1), read_streams()

    torch.manual_seed(5)
    random.seed(6)
    play.looking_back = looking_back
    item = as_other(play, feed, 1)

    assert (item, read_streams()) == expected
    assert play.spoiled == ""


def test_where_the_generator_draws_as_well_nobody_knows_which_are_the_loader_s() -> None:
    play = Play(tens=Augmented())
    feed = GeneratorSource(augmented(play, 1), "metered", play, 0)
    next(feed)

    as_other(play, feed, 0)

    assert "draws random numbers of Python or numpy" in play.spoiled


@pytest.mark.parametrize(("more", "given", "beside"), [(0, 2, False), (1, 2, True), (1, 1, False)])
def test_what_is_drawn_beside_a_loader_that_has_begun_is_known(
    more: int, given: int, beside: bool
) -> None:
    play = Play(tens=Augmented())
    feed = GeneratorSource(augmented(play, more), "metered", play, 0)
    for _ in range(given):
        next(feed)

    assert feed.draws_beside is beside


@pytest.mark.parametrize(
    ("make", "index", "reason"),
    [
        (lambda play: (one + 1 for one in play.loader()), 0, "makes something else of what"),
        (lambda play: (one for one in play.loader()), 1, "another rank takes more items from"),
        (
            lambda play: (one for one in play.loader() if random.random() < 2),
            0,
            "draws random numbers of Python",
        ),
    ],
)
def test_what_cannot_be_served_spoils_the_re_execution(make: Any, index: int, reason: str) -> None:
    play = Play()
    feed = GeneratorSource(make(play), "f", play, 0)
    first = next(feed)

    as_other(play, feed, index)

    assert reason in play.spoiled
    assert int(next(feed)) == int(first) + 1


def test_an_item_of_too_many_draws_is_not_served() -> None:
    play = Play()
    feed = GeneratorSource((list(play.loader()) for _ in range(2)), "all", play, 0)
    next(feed)

    as_other(play, feed, 0)

    assert "makes one item of too many" in play.spoiled


def test_data_after_something_else_are_not_served() -> None:
    def mixed() -> Iterator[Any]:
        yield "first"
        yield from play.loader()

    play = Play()
    feed = GeneratorSource(mixed(), "mixed", play, 0)
    next(feed), next(feed), next(feed)

    as_other(play, feed, 1)
    assert "gives data of a loader and others" in play.spoiled
    play.spoiled = ""
    assert int(as_other(play, feed, 2)) == 10
    assert play.spoiled == ""


def test_a_generator_without_a_loader_is_resumed() -> None:
    play = Play()
    feed = GeneratorSource((number for number in range(9)), "counting", play, 0)
    first = next(feed)

    taken = as_other(play, feed, 0)

    assert (first, taken, next(feed)) == (0, 1, 2)
    assert not play.spoiled


def test_a_generator_that_ends_as_another_rank_spoils_what_is_executed() -> None:
    play = Play()
    feed = GeneratorSource((number for number in range(1)), "short", play, 0)
    next(feed)

    as_other(play, feed, 0)

    assert f"rank {OTHER} has run out of data" in play.spoiled


def test_fresh_data_do_not_come_through_the_generator() -> None:
    """It may divide by what the script counts between two of its items."""
    play, passed = Play(), []

    def counting(source: Any) -> Iterator[Any]:
        while True:
            play.drawn(play.tens, 0, item := torch.tensor([7]))
            yield item
            passed.append(item)

    feed = GeneratorSource(counting(play.tens), "counting", play, 1)
    next(feed)
    play.acting_rank, play.fresh = 0, True

    assert next(feed).tolist() == [0]  # as the source gives it
    assert feed.serve(0, 0).tolist() == [0]
    assert not passed


def test_the_end_is_an_end() -> None:
    play = Play()
    feed = GeneratorSource((one for one in [1]), "short", play, 0)

    assert list(feed) == [1]
    assert feed.ended


def test_a_generator_that_no_proof_has_resumed_is_not_resumed_for_another_rank() -> None:
    play = Play(trusted=False)
    feed = GeneratorSource((number for number in itertools.count()), "numbers", play, 0)
    next(feed)

    as_other(play, feed, 0)

    assert play.spoiled.startswith("numbers was asked for its first item after the last proof")
    assert next(feed) == 1, "nothing was taken from the script"
