"""The call of a generator function in a loop's header, as another rank makes it."""

from collections.abc import Callable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.data.generator_wrapper import Make, maker
from recoverrun.worker.replay.executed_rank import ExecutedRank
from tests.unit.contexts import loop

ROWS = [1.0, 2.0, 3.0, 4.0]


def plain(rows: list[float], rank: int, world: int = 2) -> Iterator[float]:
    yield from rows[rank::world]


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """As an instrumented generator function is."""

    @wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the wrapper is not called")

    return generator


def _feed_batches(self: "Feed", rows: list[float]) -> Iterator[float]:
    yield from rows[self.rank :: 2]


class Feed:
    batches = wrapped(_feed_batches)

    def __init__(self, rank: int) -> None:
        self.rank = rank


def _made(
    header: str,
    own: Make | None,
    *,
    mine: dict[str, Any],
    theirs: dict[str, Any],
    unknown: frozenset[str] = frozenset(),
    moving: frozenset[str] = frozenset(),
    of_ranks: frozenset[str] = frozenset(),
    **more: Any,
) -> list[float] | None:
    code = compile(header, "t.py", "eval")
    text: Any = SimpleNamespace(
        moves=lambda names: not moving.isdisjoint(names),
        are_of_ranks=lambda loop, names, differing: not of_ranks.isdisjoint(names),
    )
    executed = ExecutedRank(text)
    top: Any = SimpleNamespace(loop=loop(header_code=code, **more), globals={}, names=mine)
    executed.begins(top, {}, unknown)
    apart = {name for name in mine if theirs.get(name) is not mine[name]}
    executed.goes_on(apart - {"rows"}, theirs)
    assert own is not None
    made = executed.made_like(own)
    return None if made is None else list(made())


CALLED = "(batches, (rows, rank), {})"
MINE = {"batches": wrapped(plain), "rows": ROWS, "rank": 0}
THEIRS = {**MINE, "rank": 1}
OWN = maker(plain, (ROWS, 0), {})


def test_the_generator_of_the_other_rank() -> None:
    assert _made(CALLED, OWN, mine=MINE, theirs=THEIRS) == [2.0, 4.0]


def test_a_method_is_called_with_its_object() -> None:
    feed = Feed(0)
    mine = {"feed": feed, "rows": ROWS}
    own = maker(_feed_batches, (feed, ROWS), {})
    theirs = {"feed": Feed(1), "rows": ROWS}

    assert _made("(feed.batches, (rows,), {})", own, mine=mine, theirs=theirs) == [2.0, 4.0]


@pytest.mark.parametrize(
    "own",
    [
        maker(plain, (ROWS, 1), {}),  # what gives 0 now gave 1 then
        maker(plain, (list(ROWS), 0, 2), {}),
        maker(plain, ([1.0], 0), {}),
        maker(_feed_batches, (ROWS, 0), {}),
        lambda: plain(ROWS, 0),
    ],
)
def test_a_header_that_did_not_make_our_generator_says_nothing(own: Make) -> None:
    assert _made(CALLED, own, mine=MINE, theirs=THEIRS) is None


@pytest.mark.parametrize(
    "more",
    [
        {"unknown": frozenset({"rank"})},
        {"moving": frozenset({"rank"})},
        {"assigned": frozenset({"rank"})},
        {"targets": frozenset({"rows"})},
        {"of_ranks": frozenset({"rows"})},
    ],
)
def test_what_may_have_been_another_value_as_the_loop_began(more: dict[str, Any]) -> None:
    assert _made(CALLED, OWN, mine=MINE, theirs=THEIRS, **more) is None


def test_a_local_rank_is_no_ranks_own_in_a_context() -> None:
    names = {"local_rank": 0, "batches": MINE["batches"], "rows": ROWS}
    header = "(batches, (rows, local_rank), {})"

    assert _made(header, OWN, mine=names, theirs=names) is None


def test_names_that_are_not_there() -> None:
    assert _made(CALLED, OWN, mine={}, theirs=THEIRS) is None
    assert _made(CALLED, OWN, mine=MINE, theirs={}) is None


def test_a_generator_that_reads_from_an_iterator_is_not_made_again() -> None:
    theirs = {**THEIRS, "rows": iter(ROWS)}

    assert _made(CALLED, OWN, mine=MINE, theirs=theirs) is None


def test_plain_values_and_what_contexts_hold_of_the_rank_are_its_own() -> None:
    of_ranks = frozenset({"rank", "place"})
    mine, theirs = {**MINE, "place": ["a"]}, {**THEIRS, "place": ["b"]}

    assert _made(CALLED, OWN, mine=mine, theirs=theirs, of_ranks=of_ranks) == [2.0, 4.0]
